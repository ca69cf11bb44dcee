"""A context that is nearly full: what stays, what is sampled, and that both segments are trained on."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.configs import AlgorithmConfig, NoCompactionConfig, SlidingWindowConfig, SummaryConfig
from agentfly_lib.rollout import ChainLimits
from agentfly_lib.rollout.compaction import is_due, sliding_window, with_request, with_summary
from agentfly_lib.tools import tool
from agentfly_lib.training.samples import build_samples
from agentfly_lib.types import StopReason, TrajectoryGroup

NOTE = "[Earlier turns are left out here to save space]"
HEAD = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]


@tool
def fill(size: int) -> str:
    """So many characters."""
    return "y" * size


def limits(**changes) -> ChainLimits:
    values = {"max_turns": 9, "max_turn_tokens": 200, "max_sampled_tokens": 2000, "context_length": 500}
    return ChainLimits(**(values | {"timeout_seconds": 30} | changes))


def text(segment, *, masked: bool | None = None) -> str:
    keep = slice(None) if masked is None else segment.loss_mask == (not masked)
    return "".join(map(chr, segment.token_ids[keep]))


def steps(count: int) -> list[dict]:
    return [
        message
        for number in range(count)
        for message in (
            {"role": "assistant", "content": f"say {number}"},
            {"role": "tool", "content": f"hear {number}"},
        )
    ]


def render(messages) -> list[int]:
    return [ord(character) for message in messages for character in f"{message['content']}|"]


class TestPieces:
    def test_when_it_is_due(self):
        window = SlidingWindowConfig(start_at=0.5, keep=0.2)
        assert [is_due(window, tokens=tokens, context_length=100) for tokens in (49, 50)] == [False, True]
        assert not is_due(NoCompactionConfig(), tokens=1000, context_length=100)

    def test_a_window_keeps_the_head_and_the_newest_steps_that_fit(self):
        head = [HEAD[0], {"role": "user", "content": f"q\n\n{NOTE}"}]
        two = render([*head, *steps(5)[6:]])
        messages, ids = sliding_window(HEAD, steps(5), render, max_tokens=len(two))
        assert messages == [*head, *steps(5)[6:]]
        assert ids == two
        messages, _ = sliding_window(HEAD, steps(5), render, max_tokens=len(two) - 1)
        assert messages == [*head, *steps(5)[8:]]

    def test_the_last_step_always_stays(self):
        messages, _ = sliding_window(HEAD, steps(3), render, max_tokens=1)
        assert messages[2:] == steps(3)[4:]

    def test_a_single_step_cannot_be_left_out(self):
        assert sliding_window(HEAD, steps(1), render, max_tokens=1) is None

    def test_at_least_the_oldest_step_goes(self):
        messages, _ = sliding_window(HEAD, steps(2), render, max_tokens=10_000)
        assert messages[2:] == steps(2)[2:]

    def test_a_request_is_no_message_of_its_own(self):
        results = [{"role": "tool", "content": "q", "name": "n"}, {"role": "tool", "content": "r", "name": "n"}]
        assert with_request(results, "Sum up.") == [results[0], {**results[1], "content": "r\n\nSum up."}]
        assert with_request([{"role": "user", "content": "r"}], "Sum up.") == [
            {"role": "user", "content": "r\n\nSum up."}
        ]
        assert with_request([], "Sum up.") == [{"role": "user", "content": "Sum up."}]

    def test_a_summary_stands_behind_the_question_without_its_reasoning(self):
        assert with_summary(HEAD, "<think>hm</think>\nfound 4") == [
            HEAD[0],
            {"role": "user", "content": "q\n\n[Your own summary of the work so far]\nfound 4"},
        ]

    def test_contents_that_have_parts_get_one_more(self):
        parts = [{"type": "image", "image": "x"}]
        (message,) = with_summary([{"role": "user", "content": parts}], "s")
        assert message["content"][0] == parts[0]
        assert message["content"][1]["text"].endswith("\ns")
        assert len(parts) == 1


def filler(world, size: int) -> str:
    return world.call("fill", f'{{"size": {size}}}')


def agent_with(world, compaction):
    return world.CharacterAgent(tools={"fill": fill}, compaction=compaction)


class TestSlidingWindow:
    async def test_the_oldest_turn_is_left_out_of_a_new_segment(self, world):
        calls = [filler(world, 100), filler(world, 101), "done"]
        generate = world.scripted(*calls)
        agent = agent_with(world, SlidingWindowConfig(start_at=0.6, keep=0.55))
        trajectory = await world.run(generate, agent, limits=limits(context_length=590))
        first, second = trajectory.segments
        prompt = "Q 2+2?|A "
        assert text(first) == f"{prompt}{calls[0]}\0\nT {'y' * 100}|A {calls[1]}\0"
        assert text(second) == f"Q 2+2?\n\n{NOTE}|A {calls[1]}|T {'y' * 101}|A done\0"
        assert text(second, masked=False) == "done\0"
        assert text(first, masked=False) == f"{calls[0]}\0{calls[1]}\0"
        assert trajectory.stop is StopReason.FINISHED
        assert [message["content"] for message in trajectory.messages] == [
            calls[0], "y" * 100, calls[1], "y" * 101, "done",
        ]  # fmt: skip

    async def test_without_it_the_same_chain_ends_full(self, world):
        generate = world.scripted(*[filler(world, 100)] * 9)
        trajectory = await world.run(generate, agent_with(world, NoCompactionConfig()), limits=limits())
        assert trajectory.stop is StopReason.CONTEXT_FULL

    async def test_many_turns_go_on_for_as_long_as_they_may(self, world):
        generate = world.scripted(*[filler(world, 100)] * 9)
        agent = agent_with(world, SlidingWindowConfig(start_at=0.8, keep=0.5))
        trajectory = await world.run(generate, agent, limits=limits())
        assert trajectory.stop is StopReason.MAX_TURNS
        assert trajectory.num_turns == 9
        assert len(trajectory.segments) > 2
        assert all(len(segment) <= 500 for segment in trajectory.segments)

    async def test_a_last_result_that_fits_nowhere_still_ends_it(self, world):
        generate = world.scripted(filler(world, 50), filler(world, 150), filler(world, 150))
        agent = world.CharacterAgent(
            tools={"fill": fill}, max_tool_chars=10_000, compaction=SlidingWindowConfig(start_at=0.8, keep=0.5)
        )
        huge = world.scripted(filler(world, 50), filler(world, 5000))
        assert (await world.run(huge, agent, limits=limits())).stop is StopReason.CONTEXT_FULL
        assert (await world.run(generate, agent, limits=limits(context_length=250))).stop is StopReason.CONTEXT_FULL


class TestSummary:
    CONFIG = SummaryConfig(start_at=0.5, max_tokens=60, instruction="Sum up.")

    async def test_the_policy_writes_it_and_goes_on_from_it(self, world):
        calls = [filler(world, 100), filler(world, 101)]
        generate = world.scripted(*calls, "saw y's", "done")
        trajectory = await world.run(generate, agent_with(world, self.CONFIG), limits=limits())
        first, second = trajectory.segments
        assert text(first) == (
            f"Q 2+2?|A {calls[0]}\0\nT {'y' * 100}|A {calls[1]}\0\nT {'y' * 101}\n\nSum up.|A saw y's\0"
        )
        assert text(first, masked=False) == f"{calls[0]}\0{calls[1]}\0saw y's\0"
        assert text(second) == "Q 2+2?\n\n[Your own summary of the work so far]\nsaw y's|A done\0"
        assert text(second, masked=False) == "done\0"
        assert [message["role"] for message in trajectory.messages] == [
            "assistant", "tool", "assistant", "tool", "assistant", "assistant",
        ]  # fmt: skip
        assert trajectory.final_response == "done"
        assert [request.seed for request in generate.requests] == [0, 1, 2, 3]
        assert generate.requests[2].max_tokens == 60

    async def test_a_summary_is_no_turn_of_the_limit(self, world):
        generate = world.scripted(filler(world, 100), filler(world, 100), "sum", "done")
        trajectory = await world.run(generate, agent_with(world, self.CONFIG), limits=limits(max_turns=3))
        assert trajectory.stop is StopReason.FINISHED

    async def test_a_second_summary_takes_the_place_of_the_first(self, world):
        two = [filler(world, 100)] * 2
        generate = world.scripted(*two, "one", *two, "two", "done")
        trajectory = await world.run(generate, agent_with(world, self.CONFIG), limits=limits())
        assert text(trajectory.segments[1]).startswith("Q 2+2?\n\n[Your own summary of the work so far]\none|A ")
        assert text(trajectory.segments[2]).startswith("Q 2+2?\n\n[Your own summary of the work so far]\ntwo|A ")

    async def test_calls_in_a_summary_are_not_run(self, world):
        generate = world.scripted(filler(world, 100), filler(world, 100), filler(world, 1)[:50], "done")
        trajectory = await world.run(generate, agent_with(world, self.CONFIG), limits=limits())
        assert trajectory.metrics["tool_calls"] == 2

    async def test_a_summary_that_is_cut_is_used_as_far_as_it_goes(self, world):
        generate = world.scripted(filler(world, 100), filler(world, 100), "z" * 99, "done")
        trajectory = await world.run(generate, agent_with(world, self.CONFIG), limits=limits())
        assert text(trajectory.segments[1]).endswith(f"so far]\n{'z' * 60}|A done\0")

    async def test_without_room_for_one_the_oldest_turns_are_left_out(self, world):
        generate = world.scripted(filler(world, 60), filler(world, 190), "done")
        config = SummaryConfig(start_at=0.8, max_tokens=120, instruction="Sum up.")
        trajectory = await world.run(generate, agent_with(world, config), limits=limits())
        assert trajectory.stop is StopReason.FINISHED
        assert NOTE in text(trajectory.segments[1])

    async def test_tokens_of_the_trajectory_are_not_exceeded(self, world):
        calls = [filler(world, 100), filler(world, 100)]
        sampled = sum(map(len, calls)) + 2
        generate = world.scripted(*calls, "a long summary", "done")
        trajectory = await world.run(
            generate, agent_with(world, self.CONFIG), limits=limits(max_sampled_tokens=sampled + 5)
        )
        assert trajectory.num_sampled == sampled + 5
        assert trajectory.stop is StopReason.MAX_TOKENS


@pytest.mark.parametrize(
    "compaction", [SlidingWindowConfig(start_at=0.6, keep=0.5), SummaryConfig(start_at=0.5, max_tokens=60)]
)
async def test_all_segments_train_with_the_advantage_of_their_trajectory(world, compaction):
    trajectories = []
    for chain in range(2):
        script = [filler(world, 100), filler(world, 100), "a", "b", "c"]
        trajectory = await world.run(world.scripted(*script), agent_with(world, compaction), limits=limits())
        assert len(trajectory.segments) == 2
        trajectories.append(dataclasses.replace(trajectory, id=f"g/{chain}", chain=chain, reward=float(chain)))
    group = TrajectoryGroup(id="g", problem=world.problem(), trajectories=tuple(trajectories))
    built = build_samples([group], AlgorithmConfig())
    samples, report = built.samples, built.report
    assert (report.trained_trajectories, len(samples)) == (2, 4)
    for sample in samples:
        own = sample.advantages[sample.loss_mask]
        sign = 1 if sample.trajectory_id == "g/1" else -1
        assert (np.sign(own) == sign).all()
        assert (sample.advantages[~sample.loss_mask] == 0).all()
    assert report.loss_tokens == sum(trajectory.num_sampled for trajectory in trajectories)


compactions = st.one_of(
    st.just(NoCompactionConfig()),
    st.builds(SlidingWindowConfig, start_at=st.floats(0.3, 1.0), keep=st.floats(0.05, 0.29)),
    st.builds(SummaryConfig, start_at=st.floats(0.1, 1.0), max_tokens=st.integers(1, 100), instruction=st.just("Sum.")),
)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 250), min_size=16, max_size=16),
    compaction=compactions,
    rewrites=st.booleans(),
    context_length=st.integers(30, 600),
    max_sampled_tokens=st.integers(1, 900),
)
def test_whatever_is_left_out_the_engine_sees_the_segments_own_tokens(
    world, sizes, compaction, rewrites, context_length, max_sampled_tokens
):
    async def play():
        agent = world.CharacterAgent(
            chat=world.CharacterChat(rewrites=rewrites), tools={"fill": fill}, compaction=compaction
        )
        generate = world.scripted(*[filler(world, size) for size in sizes])
        bounds = limits(context_length=context_length, max_sampled_tokens=max_sampled_tokens, max_turns=8)
        return generate, await world.run(generate, agent, limits=bounds)

    generate, trajectory = asyncio.run(play())
    assert trajectory.failure is None
    turns = [(segment, turn) for segment in trajectory.segments for turn in segment.turns if turn.sampled]
    assert len(turns) == len(generate.requests)
    for (segment, turn), request in zip(turns, generate.requests, strict=True):
        assert list(request.token_ids) == segment.token_ids[: turn.start].tolist()
        assert 1 <= request.max_tokens <= context_length - len(request.token_ids)
    for segment in trajectory.segments:
        expected = np.zeros(len(segment), bool)
        for turn in segment.turns:
            expected[turn.start : turn.end] = turn.sampled
        np.testing.assert_array_equal(segment.loss_mask, expected)
    assert trajectory.num_sampled <= max_sampled_tokens
