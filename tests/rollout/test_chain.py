"""One chain, followed token by token: what it appends, where it stops, and how it breaks."""

import asyncio
import dataclasses
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.errors import EngineError, EnvironmentFailure, InfrastructureError
from agentfly_lib.inference import Generation, ScriptedGenerate
from agentfly_lib.rollout import ChainLimits
from agentfly_lib.store.shards import read_part, write_part
from agentfly_lib.tools import ToolContext, tool
from agentfly_lib.tools.answer import answer
from agentfly_lib.tools.finish import finish
from agentfly_lib.types import FailureKind, FinishReason, StopReason, TrajectoryGroup


def text(segment, *, masked: bool | None = None) -> str:
    keep = segment.loss_mask == (not masked) if masked is not None else slice(None)
    return "".join(map(chr, segment.token_ids[keep]))


def limits(world, **changes) -> ChainLimits:
    values = {
        "max_turns": 3,
        "max_turn_tokens": 200,
        "max_sampled_tokens": 400,
        "context_length": 1000,
        "timeout_seconds": 30,
    }
    return ChainLimits(**(values | changes))


async def test_a_call_its_result_and_the_answer(world):
    asked = world.call("double", '{"number": 2}')
    generate = world.scripted(asked, "4", policy_version=7)
    trajectory = await world.run(generate)
    (segment,) = trajectory.segments
    assert text(segment) == f"Q 2+2?|A {asked}\0\nT 4|A 4\0"
    assert text(segment, masked=False) == f"{asked}\0004\0"
    assert trajectory.stop is StopReason.FINISHED
    assert trajectory.failure is None
    assert [turn.message for turn in segment.turns] == [
        {"role": "assistant", "content": asked},
        {"role": "tool", "tool_call_id": "call-0", "name": "double", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    assert [turn.policy_version for turn in segment.turns] == [7, None, 7]
    assert (trajectory.id, trajectory.problem_id, trajectory.final_response) == ("g/0", "p", "4")


async def test_the_log_probs_are_the_engines_own(world):
    generate = world.scripted(world.call("double", '{"number": 2}'), "4")
    (segment,) = (await world.run(generate)).segments
    expected = []
    for request, start in zip(generate.requests, (turn.start for turn in segment.turns if turn.sampled), strict=True):
        again = await world.scripted(world.call("double", '{"number": 2}'), "4").generate(request)
        assert list(request.token_ids) == segment.token_ids[:start].tolist()
        expected += again.logprobs
    np.testing.assert_array_equal(segment.logprobs[segment.loss_mask], np.array(expected, np.float32))


async def test_requests_carry_the_seed_of_their_turn_and_the_formats_stop_tokens(world):
    generate = world.scripted(world.call("count"), "1")
    await world.run(generate, seed_of_turn=lambda turn: 100 + turn, greedy=True)
    assert [request.seed for request in generate.requests] == [100, 101]
    assert all(request.stop_token_ids == (0,) and request.greedy for request in generate.requests)


async def test_earlier_ranks_go_before_later_ones_and_earlier_turns_before_later_ones(world):
    orders = {}
    for rank in (-1, 0, 1):
        generate = world.scripted(world.call("count"), "1")
        await world.run(generate, rank=rank)
        orders[rank] = [request.priority for request in generate.requests]
    assert [*orders[-1], *orders[0], *orders[1]] == sorted({*orders[-1], *orders[0], *orders[1]})


async def test_turns_whose_tokens_are_not_known_to_be_the_sampled_ones_are_counted(world):
    script = world.scripted(world.call("count"), "1")

    class SecondInexact:
        async def generate(self, request) -> Generation:
            return dataclasses.replace(await script.generate(request), exact=len(script.requests) != 2)

    assert (await world.run(SecondInexact())).metrics["inexact_turns"] == 1
    assert (await world.run(world.scripted("4"))).metrics["inexact_turns"] == 0


async def test_requests_carry_the_conversation_for_servers_that_take_nothing_else(world):
    generate = world.scripted(asked := world.call("count"), "1")
    await world.run(generate)
    first, second = (request.messages for request in generate.requests)
    assert [message["role"] for message in first] == ["question"]
    assert [message["role"] for message in second] == ["question", "assistant", "tool"]
    assert second[1]["content"].startswith(asked)
    assert [tool["function"]["name"] for tool in generate.requests[0].tools] == ["double", "submit", "count"]


async def test_calls_of_one_turn_are_answered_in_order_under_their_ids(world):
    asked = world.call("double", '{"number": 1}') + "<tool_call>{</tool_call>" + world.call("double", '{"number": 3}')
    trajectory = await world.run(world.scripted(asked, "done"))
    first, broken, third = [turn.message for turn in trajectory.segments[0].turns if not turn.sampled]
    assert (first["tool_call_id"], first["content"]) == ("call-0", "2")
    assert broken["tool_call_id"] == "call-1"
    assert "not valid JSON" in broken["content"]
    assert (third["tool_call_id"], third["content"]) == ("call-2", "6")
    assert (trajectory.metrics["tool_calls"], trajectory.metrics["tool_errors"]) == (3, 1)
    assert trajectory.stop is StopReason.FINISHED


async def test_two_chains_share_no_tool_state(world):
    generate = world.scripted(world.call("count"), "x")
    for trajectory in await asyncio.gather(world.run(generate), world.run(generate)):
        assert trajectory.messages[1]["content"] == "1"


async def test_a_finishing_tool_ends_the_chain_and_gives_its_reward(world):
    generate = world.scripted(world.call("submit", '{"answer": "4"}') + world.call("count"))
    trajectory = await world.run(generate)
    assert trajectory.stop is StopReason.FINISHED
    assert trajectory.env_reward == 0.5
    assert len(generate.requests) == 1
    assert [message["role"] for message in trajectory.messages] == ["assistant", "tool", "tool"]
    assert trajectory.segments[0].loss_mask[-1]  # nothing is rendered that nobody reads


async def test_the_calls_of_the_last_turn_are_not_run(world):
    runs = []
    record = tool(name="record")(lambda: runs.append(1))
    agent = world.CharacterAgent(tools={"record": record})
    generate = world.scripted(*[world.call("record")] * 9)
    trajectory = await world.run(generate, agent, limits=limits(world, max_turns=2))
    assert trajectory.stop is StopReason.MAX_TURNS
    assert (trajectory.num_turns, len(generate.requests), len(runs)) == (2, 2, 1)


async def test_the_last_turn_may_still_hand_in_the_answer(world):
    asked = world.call("count") + world.call("submit", '{"answer": "4"}')
    trajectory = await world.run(world.scripted(asked), limits=limits(world, max_turns=1))
    assert trajectory.stop is StopReason.FINISHED
    assert trajectory.env_reward == 0.5
    assert [message["content"] for message in trajectory.messages[1:]] == ["1", "handed in"]
    refused = await world.run(world.scripted(world.call("submit")), limits=limits(world, max_turns=1))
    assert refused.stop is StopReason.MAX_TURNS
    assert "missing argument answer" in refused.messages[-1]["content"]


async def test_calls_beyond_the_limit_of_a_turn_are_refused_as_one(world):
    runs = []
    record = tool(name="record")(lambda: runs.append(1))
    agent = world.CharacterAgent(tools={"record": record}, max_calls_per_turn=2)
    trajectory = await world.run(
        world.scripted(world.call("record") * 5, "done"), agent, limits=limits(world, max_turn_tokens=400)
    )
    answers = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
    assert answers[:2] == ["(no output)"] * 2
    assert len(answers) == 3
    assert "At most 2 tool calls are taken in a turn" in answers[2]
    assert len(runs) == 2


class TestTheAnswer:
    """`final_response` is what the policy gave as its answer, wherever its format has it."""

    async def finish(self, world, *replies, tools=None, **options):
        agent = world.CharacterAgent(**({} if tools is None else {"tools": {each.name: each for each in tools}}))
        return await world.run(world.scripted(*replies), agent, limits=limits(world), **options)

    async def test_a_last_turn_without_its_thoughts(self, world):
        trajectory = await self.finish(world, "<think>2 and 2</think> It is 4.")
        assert trajectory.final_response == "It is 4."
        assert trajectory.messages[-1]["content"] == "<think>2 and 2</think> It is 4."

    async def test_what_a_finishing_tool_returns(self, world):
        said = "I hand it in." + world.call("answer", '{"answer": "4"}')
        assert (await self.finish(world, said, tools=[answer])).final_response == "4"

    async def test_what_was_said_beside_a_call_that_finishes_without_an_answer(self, world):
        said = "<think>so</think> It is 4. " + world.call("finish")
        assert (await self.finish(world, said, tools=[finish])).final_response == "It is 4."

    async def test_a_chain_that_was_cut_has_none_and_its_last_turn_stands_for_it(self, world):
        trajectory = await world.run(world.scripted("x" * 99), limits=limits(world, max_turn_tokens=5))
        assert (trajectory.stop, trajectory.final_response) == (StopReason.MAX_TOKENS, "xxxxx")

    async def test_it_is_kept_in_shards(self, world, tmp_path):
        trajectory = await self.finish(world, world.call("answer", '{"answer": "4"}'), tools=[answer])
        group = TrajectoryGroup(id="g", problem=world.problem(), trajectories=(trajectory,))
        part = write_part(tmp_path / "part-00000.arrow", [group], step=0)
        assert read_part(tmp_path / part.name)[0].trajectories[0].final_response == "4"


async def test_a_cut_turn_stops_the_chain_and_its_calls_are_never_run(world):
    runs = []
    record = tool(name="record")(lambda: runs.append(1))
    agent = world.CharacterAgent(tools={"record": record})
    asked = world.call("record")
    trajectory = await world.run(world.scripted(asked), agent, limits=limits(world, max_turn_tokens=len(asked)))
    assert trajectory.stop is StopReason.MAX_TOKENS
    assert trajectory.segments[0].turns[0].finish is FinishReason.LENGTH
    assert runs == []
    assert text(trajectory.segments[0], masked=False) == asked  # no end-of-turn token that nobody sampled


async def test_a_turn_may_sample_only_what_the_trajectory_has_left(world):
    asked = world.call("count")
    generate = world.scripted(asked, "x" * 99)
    trajectory = await world.run(generate, limits=limits(world, max_sampled_tokens=len(asked) + 1 + 10))
    assert [request.max_tokens for request in generate.requests] == [len(asked) + 11, 10]
    assert trajectory.stop is StopReason.MAX_TOKENS
    assert trajectory.num_sampled == len(asked) + 11


async def test_no_turn_begins_without_a_token_to_sample(world):
    asked = world.call("count")
    generate = world.scripted(asked, "never")
    trajectory = await world.run(generate, limits=limits(world, max_sampled_tokens=len(asked) + 1))
    assert trajectory.stop is StopReason.MAX_TOKENS
    assert len(generate.requests) == 1


async def test_the_context_is_checked_with_the_tool_result_in_it(world):
    long = tool(name="long")(lambda: "y" * 150)
    agent = world.CharacterAgent(tools={"long": long})
    prompt, asked = len("Q 2+2?|A "), world.call("long") + "\0"
    with_result = prompt + len(asked) + len("\nT |A ") + 150
    for context, expected in ((with_result + 1, 1), (with_result, None), (with_result - 100, None)):
        generate = world.scripted(world.call("long"), "ok")
        trajectory = await world.run(generate, agent, limits=limits(world, context_length=context))
        if expected is None:
            assert trajectory.stop is StopReason.CONTEXT_FULL
            assert len(generate.requests) == 1
            assert trajectory.messages[-1]["content"] == "y" * 150  # what came back is kept to be read
            assert len(trajectory.segments[0]) == prompt + len(asked)  # but not as tokens of the segment
        else:
            assert generate.requests[1].max_tokens == expected
            assert len(trajectory.segments[0]) == context
        assert all(request.max_tokens >= 1 for request in generate.requests)


async def test_a_template_that_rewrites_history_begins_a_new_segment(world):
    agent = world.CharacterAgent(chat=world.CharacterChat(rewrites=True))
    generate = world.scripted(world.call("double", '{"number": 2}'), "4")
    trajectory = await world.run(generate, agent)
    first, second = trajectory.segments
    assert text(first) == "Q 2+2?|A " + world.call("double", '{"number": 2}') + "\0"
    assert text(second) == "Q 2+2?|A ...|T 4|A 4\0"
    assert text(second, masked=False) == "4\0"
    assert list(generate.requests[1].token_ids) == world.encode("Q 2+2?|A ...|T 4|A ")
    assert [message["role"] for message in trajectory.messages] == ["assistant", "tool", "assistant"]
    assert trajectory.num_sampled == sum(segment.num_sampled for segment in trajectory.segments)


async def test_a_fresh_prompt_is_measured_by_itself_not_behind_the_old_segment(world):
    agent = world.CharacterAgent(chat=world.CharacterChat(rewrites=True))
    old = len("Q 2+2?|A ") + len(world.call("count")) + 1
    for context, stop in ((old + 1, StopReason.FINISHED), (old - 1, StopReason.MAX_TOKENS)):
        trajectory = await world.run(
            world.scripted(world.call("count"), ""), agent, limits=limits(world, context_length=context)
        )
        assert trajectory.stop is stop


async def test_a_prompt_without_room_is_a_failure_that_names_the_trajectory(world):
    trajectory = await world.run(world.scripted("x"), limits=limits(world, context_length=9))
    assert trajectory.stop is StopReason.FAILED
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.POLICY
    assert "g/0" in trajectory.failure.message
    assert "prompt of 9 tokens" in trajectory.failure.message
    assert trajectory.policy_version == -1


class Says:
    """A `Generate` that gives one fixed generation."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    async def generate(self, request) -> Generation:
        return self.generation


async def test_an_engine_that_gives_too_few_log_probs_is_refused(world):
    broken = Generation(token_ids=[52, 0], logprobs=[-1.0], finish=FinishReason.STOP, policy_version=0)
    failure = (await world.run(Says(broken))).failure
    assert failure is not None
    assert (failure.kind, failure.where) == (FailureKind.INFRASTRUCTURE, "reply")
    assert "2 tokens, 1 log-probs" in failure.message


async def test_each_token_keeps_the_version_that_sampled_it(world):
    generation = Generation(
        token_ids=[52, 53, 0], logprobs=[-1.0] * 3, finish=FinishReason.STOP, policy_version=4, versions=[4, 4, 5]
    )
    (segment,) = (await world.run(Says(generation))).segments
    assert segment.versions[segment.loss_mask].tolist() == [4, 4, 5]
    assert set(segment.versions[~segment.loss_mask]) == {-1}
    assert segment.turns[0].policy_version == 4


async def test_missing_log_probs_are_kept_as_nan_and_counted(world):
    generation = Generation(
        token_ids=[52, 0], logprobs=[-1.0, float("nan")], finish=FinishReason.STOP, policy_version=0
    )
    trajectory = await world.run(Says(generation))
    assert trajectory.failure is None
    assert trajectory.metrics["missing_logprobs"] == 1
    assert np.isnan(trajectory.segments[0].logprobs[-1])


@pytest.mark.parametrize(
    ("error", "kind", "where"),
    [
        (InfrastructureError("engine gone", where="generate"), FailureKind.INFRASTRUCTURE, "generate"),
        (EnvironmentFailure("game crashed", where="tool:play"), FailureKind.ENVIRONMENT, "tool:play"),
        (ValueError("prompt too long"), FailureKind.INFRASTRUCTURE, "request"),
        (TimeoutError("no answer"), FailureKind.INFRASTRUCTURE, "generate"),
        (KeyError("bug"), FailureKind.INFRASTRUCTURE, "generate"),
    ],
)
async def test_what_breaks_a_chain_is_recorded_with_who_is_to_blame_and_where(world, error, kind, where):
    trajectory = await world.run(world.scripted(error))
    assert trajectory.stop is StopReason.FAILED
    assert trajectory.failure is not None
    assert (trajectory.failure.kind, trajectory.failure.where) == (kind, where)
    assert str(error.args[0]) in trajectory.failure.message


async def test_a_failed_chain_keeps_what_it_had(world):
    asked = world.call("count")
    trajectory = await world.run(world.scripted(asked, InfrastructureError("gone\nand lost", where="generate")))
    assert text(trajectory.segments[0], masked=False) == asked + "\0"
    assert trajectory.failure is not None
    assert trajectory.failure.message == "gone and lost"


async def test_an_unexpected_error_is_logged_with_its_traceback(world, caplog):
    class Buggy(world.CharacterAgent):
        def build_messages(self, problem):
            raise AttributeError("typo \x1b[2J")

    with caplog.at_level(logging.ERROR, logger="agentfly_lib.rollout.chain"):
        trajectory = await world.run(world.scripted("x"), Buggy())
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.message) == ("prompt", "AttributeError: typo \x1b[2J")
    assert trajectory.segments == ()
    assert "build_messages" in caplog.text
    assert "typo ␛[2J" in caplog.text  # a terminal shows it and does nothing else
    assert "\x1b" not in caplog.text


async def test_an_aborted_generation_is_no_reply(world):
    aborted = Generation(token_ids=[52], logprobs=[-1.0], finish=FinishReason.ABORT, policy_version=0)
    trajectory = await world.run(Says(aborted))
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.INFRASTRUCTURE
    assert trajectory.num_sampled == 0


async def test_a_dead_engine_and_cancellation_pass_through(world):
    with pytest.raises(EngineError, match="dead"):
        await world.run(world.scripted(EngineError("dead")))
    generate = world.scripted("x", delay=lambda _: asyncio.Event().wait())
    task = asyncio.create_task(world.run(generate))
    await world.until(lambda: generate.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert generate.cancelled == ["g/0/0"]


async def test_a_chain_ends_at_its_time_limit_wherever_it_is(world):
    stuck = world.scripted("x", delay=lambda _: asyncio.Event().wait())
    waiting = await world.run(stuck, limits=limits(world, timeout_seconds=0.01))
    assert waiting.failure is not None
    assert (waiting.failure.kind, waiting.failure.where) == (FailureKind.INFRASTRUCTURE, "generate")
    assert "0.01 s" in waiting.failure.message
    assert stuck.cancelled == ["g/0/0"]

    @tool
    async def sleeper() -> None:
        """Never answers."""
        await asyncio.Event().wait()

    agent = world.CharacterAgent(tools={"sleeper": sleeper})
    acting = await world.run(world.scripted(world.call("sleeper")), agent, limits=limits(world, timeout_seconds=0.05))
    assert acting.failure is not None
    assert (acting.failure.kind, acting.failure.where) == (FailureKind.TOOL, "tools")
    assert acting.num_turns == 1


class Borrowing:
    """An agent whose tool leaves something to be closed, and what became of it."""

    def __init__(self, world) -> None:
        self.events: list[str] = []

        @tool
        async def borrow(context: ToolContext) -> str:
            async def give_back() -> None:
                self.events.append("closed")

            context.resources.at_end(give_back)
            self.events.append("open")
            return "got it"

        self.agent = world.CharacterAgent(tools={"borrow": borrow})


@pytest.mark.parametrize(
    ("last", "stop"),
    [
        ("done", StopReason.FINISHED),
        (InfrastructureError("gone", where="generate"), StopReason.FAILED),
        (KeyError("bug"), StopReason.FAILED),
    ],
)
async def test_what_tools_opened_is_closed_however_the_chain_ends(world, last, stop):
    borrowing = Borrowing(world)
    trajectory = await world.run(world.scripted(world.call("borrow"), last), borrowing.agent)
    assert trajectory.stop is stop
    assert borrowing.events == ["open", "closed"]


async def test_what_tools_opened_is_closed_when_the_engine_dies_or_the_chain_is_cancelled(world):
    borrowing = Borrowing(world)
    with pytest.raises(EngineError):
        await world.run(world.scripted(world.call("borrow"), EngineError("dead")), borrowing.agent)
    assert borrowing.events == ["open", "closed"]

    borrowing = Borrowing(world)
    generate = world.scripted(
        world.call("borrow"),
        "x",
        delay=lambda r: asyncio.Event().wait() if r.request_id == "g/0/1" else asyncio.sleep(0),
    )
    task = asyncio.create_task(world.run(generate, borrowing.agent))
    await world.until(lambda: borrowing.events == ["open"] and generate.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert borrowing.events == ["open", "closed"]


async def test_what_a_tool_needs_and_cannot_have_is_an_infrastructure_failure(world):
    class Nothing:
        def check(self) -> None: ...

        def open(self):
            raise OSError("no room")

    shop = tool(name="shop", needs=Nothing())(lambda: "never")
    agent = world.CharacterAgent(tools={"shop": shop})
    failure = (await world.run(world.scripted(world.call("shop"), "x"), agent)).failure
    assert failure is not None
    assert (failure.kind, failure.where) == (FailureKind.INFRASTRUCTURE, "tool:shop")
    assert "no room" in failure.message


async def test_metrics_count_what_happened(world):
    asked = world.call("double", '{"number": 2}')
    metrics = (await world.run(world.scripted(asked, "4"))).metrics
    prompt = len("Q 2+2?|A ")
    assert metrics["turns"] == 2
    assert metrics["prompt_tokens"] == prompt + (prompt + len(asked) + 1 + len("\nT 4|A "))
    assert metrics["sampled_tokens"] == len(asked) + 1 + 2
    assert (metrics["tool_calls"], metrics["tool_errors"], metrics["segments"]) == (1, 0, 1)
    parts = metrics["generate_seconds"] + metrics["tool_seconds"] + metrics["other_seconds"]
    assert metrics["seconds"] == pytest.approx(parts)


replies = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=20),
    st.sampled_from(
        [
            '<tool_call>{"name": "count", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "double", "arguments": {"number": 21}}</tool_call>' * 2,
            '<tool_call>{"name": "double", "arguments": {"number": "x"}}</tool_call>',
            '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>',
            "<tool_call>{not json}</tool_call>",
            "<tool_call>",
            '<tool_call>{"name": "submit", "arguments": {"answer": "?"}}</tool_call>',
        ]
    ),
)


@settings(deadline=None)
@given(
    script=st.lists(replies, min_size=6, max_size=6),
    rewrites=st.booleans(),
    max_turns=st.integers(1, 6),
    max_turn_tokens=st.integers(1, 90),
    max_sampled_tokens=st.integers(1, 300),
    context_length=st.integers(10, 500),
)
def test_whatever_is_said_the_engine_sees_the_segments_own_tokens(world, script, rewrites, **bounds):
    """The prompt of every turn equals its segment's ids before it; the mask is 1 exactly where the policy sampled."""
    sampled = {}

    async def play():
        inner = ScriptedGenerate(script, format=world.CharacterChat())

        class Spy:
            async def generate(self, request):
                generation = await inner.generate(request)
                sampled[tuple(request.token_ids)] = generation
                return generation

        agent = world.CharacterAgent(chat=world.CharacterChat(rewrites=rewrites))
        return inner, await world.run(Spy(), agent, limits=limits(world, **bounds))

    inner, trajectory = asyncio.run(play())
    assert trajectory.failure is None
    turns = [(segment, turn) for segment in trajectory.segments for turn in segment.turns if turn.sampled]
    assert len(turns) == len(inner.requests) <= bounds["max_turns"]
    for (segment, turn), request in zip(turns, inner.requests, strict=True):
        assert list(request.token_ids) == segment.token_ids[: turn.start].tolist()
        assert 1 <= request.max_tokens <= bounds["max_turn_tokens"]
        assert len(request.token_ids) + request.max_tokens <= bounds["context_length"]
        generation = sampled[tuple(request.token_ids)]
        assert segment.token_ids[turn.start : turn.end].tolist() == generation.token_ids
        np.testing.assert_array_equal(
            segment.logprobs[turn.start : turn.end], np.array(generation.logprobs, np.float32)
        )
    for segment in trajectory.segments:
        expected = np.zeros(len(segment), bool)
        for turn in segment.turns:
            expected[turn.start : turn.end] = turn.sampled
        np.testing.assert_array_equal(segment.loss_mask, expected)
        np.testing.assert_array_equal(np.isnan(segment.logprobs), ~segment.loss_mask)
        assert len(segment) <= bounds["context_length"]
    assert 0 < trajectory.num_sampled <= bounds["max_sampled_tokens"]


@pytest.mark.parametrize("name", ["max_turns", "max_turn_tokens", "max_sampled_tokens", "context_length"])
def test_limits_that_allow_nothing_are_refused(world, name):
    with pytest.raises(ValueError, match=f"{name}=0"):
        limits(world, **{name: 0})
