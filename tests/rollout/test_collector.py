"""Many chains: nothing waits for anything else, nothing finished is lost, and the counts always balance."""

import asyncio
import itertools
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.errors import EngineError, EnvironmentFailure, InfrastructureError, ShardError
from agentfly_lib.rollout import RolloutSeeds
from agentfly_lib.rollout.writer import GroupWriter
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import iter_groups, read_rollout_manifest
from agentfly_lib.types import FailureKind, StopReason, TrajectoryGroup


def stored(path) -> dict[str, TrajectoryGroup]:
    """What lies on the disk, as another process would read it."""
    directory = StepDirectory(path)
    parts = iter_groups(directory, read_rollout_manifest(directory))
    return {group.id: group for _, groups in parts for group in groups}


def chains_of(generate) -> Counter:
    """How often the first turn of each chain was asked for."""
    return Counter(
        request.request_id.rsplit("/", 1)[0] for request in generate.requests if request.request_id[-1] == "0"
    )


def gone() -> InfrastructureError:
    return InfrastructureError("engine gone", where="generate")


async def test_every_problem_gets_its_chains_and_all_are_on_disk(world, tmp_path):
    asked = world.problems(5)
    generate = world.scripted(world.call("double", '{"number": 2}'), "4")
    collected = await world.gather(generate, asked, world.open_store(tmp_path, asked))
    assert collected.manifest.complete
    groups = stored(tmp_path)
    assert list(groups) == [group for group, _ in asked] or set(groups) == {group for group, _ in asked}
    for group_id, problem in asked:
        assert groups[group_id].problem == problem
        assert [trajectory.id for trajectory in groups[group_id].trajectories] == [f"{group_id}/0", f"{group_id}/1"]
        assert {trajectory.final_response for trajectory in groups[group_id].trajectories} == {"4"}
    assert collected.progress.chains_done == collected.progress.chains == 10
    assert collected.progress.sampled_tokens == sum(t.num_sampled for g in groups.values() for t in g.trajectories)


async def test_one_failing_chain_is_a_recorded_failure_not_a_failed_batch(world, tmp_path):
    asked = world.problems(3)
    broken = EnvironmentFailure("game crashed", where="tool:play")
    generate = world.by_place(lambda group, chain, turn: broken if (group, chain) == ("0-1", 0) else "4")
    collected = await world.gather(generate, asked, world.open_store(tmp_path, asked))
    failures = {t.id: t.failure for g in stored(tmp_path).values() for t in g.trajectories if t.failure}
    assert {name: (f.kind, f.message, f.attempts) for name, f in failures.items()} == {
        "0-1/0": (FailureKind.ENVIRONMENT, "game crashed", 1)
    }
    assert (collected.progress.failures, collected.progress.retries) == (1, 0)
    assert chains_of(generate)["0-1/0"] == 1  # not an infrastructure failure: not tried again


async def test_an_infrastructure_failure_is_tried_again_with_the_same_seeds(world, tmp_path):
    asked = world.problems(2)
    tries = Counter()

    def script(group, chain, turn):
        tries[group, chain, turn] += 1
        return gone() if (group, chain, tries[group, chain, turn]) == ("0-0", 1, 1) else "4"

    generate = world.by_place(script)
    collected = await world.gather(generate, asked, world.open_store(tmp_path, asked))
    trajectory = stored(tmp_path)["0-0"].trajectories[1]
    assert (trajectory.failure, trajectory.stop, trajectory.attempt) == (None, StopReason.FINISHED, 1)
    first, second = [request.seed for request in generate.requests if request.request_id == "0-0/1/0"]
    assert first == second == RolloutSeeds(run_seed=0, step=0).turn(0, 1, 0)
    assert (collected.progress.failures, collected.progress.retries) == (0, 1)


async def test_after_the_last_try_the_failure_is_recorded_with_the_number_of_tries(world, tmp_path):
    asked = world.problems(1)
    generate = world.by_place(lambda group, chain, turn: gone() if chain == 0 else "4")
    await world.gather(generate, asked, world.open_store(tmp_path, asked), config=world.config(retries=2))
    failed, fine = stored(tmp_path)["0-0"].trajectories
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.attempts, failed.attempt) == (FailureKind.INFRASTRUCTURE, 3, 2)
    assert fine.failure is None


async def test_what_would_fail_in_the_same_way_again_is_not_tried_again(world, tmp_path):
    asked = world.problems(1)
    generate = world.by_place(lambda group, chain, turn: ValueError("prompt too long for the engine"))
    await world.gather(generate, asked, world.open_store(tmp_path, asked), config=world.config(retries=5))
    assert chains_of(generate) == {"0-0/0": 1, "0-0/1": 1}


async def test_an_outage_ends_the_collection_and_says_what_is_kept(world, tmp_path):
    asked = world.problems(50)
    store = world.open_store(tmp_path, asked)
    healthy = 12

    async def once_the_first_groups_are_stored(request):
        if int(request.request_id.split("/")[0].split("-")[1]) >= healthy:
            await world.until(lambda: len(store.done) == healthy)

    generate = world.by_place(
        lambda group, chain, turn: "4" if int(group.split("-")[1]) < healthy else gone(),
        delay=once_the_first_groups_are_stored,
    )
    # On a stalled machine several groups may fail twice, and be stored as failed, before others have failed at all.
    with pytest.raises(
        EngineError, match=r"([6-9]|1\d) infrastructure failures in a row.*engine gone.*1[2-5] of 50 groups"
    ) as caught:
        await world.gather(generate, asked, store, config=world.config(max_consecutive_failures=6))
    assert not isinstance(caught.value, BaseExceptionGroup)
    assert set(stored(tmp_path)) >= {f"0-{index}" for index in range(healthy)}
    assert not read_rollout_manifest(StepDirectory(tmp_path)).complete
    assert len(generate.requests) < 200  # the outage is not hammered


async def test_one_bad_problem_is_no_outage(world, tmp_path):
    asked = world.problems(3)
    generate = world.by_place(lambda group, chain, turn: gone() if group == "0-1" else "4")
    collected = await world.gather(
        generate,
        asked,
        world.open_store(tmp_path, asked, chains=8),
        config=world.config(chains=8, retries=3, max_consecutive_failures=4, max_concurrency=1),
    )
    assert collected.manifest.complete
    assert collected.progress.failures == 8


async def test_failures_with_successes_between_them_are_no_outage(world, tmp_path):
    asked = world.problems(20)
    generate = world.by_place(lambda group, chain, turn: gone() if chain == 0 else "4")
    collected = await world.gather(
        generate,
        asked,
        world.open_store(tmp_path, asked),
        config=world.config(max_consecutive_failures=3, max_concurrency=1, retries=1),
    )
    assert collected.progress.failures == 20


async def test_a_dead_engine_ends_the_collection_at_once_and_no_chain_is_blamed(world, tmp_path):
    asked = world.problems(4)
    generate = world.by_place(lambda group, chain, turn: EngineError("engine 'engine-0' is gone"))
    with pytest.raises(EngineError, match=r"engine-0.*0 of 4 groups are stored"):
        await world.gather(generate, asked, world.open_store(tmp_path, asked))
    assert stored(tmp_path) == {}


async def test_a_resume_asks_only_for_what_is_missing_with_the_seeds_of_an_uninterrupted_run(world, tmp_path):
    asked = world.problems(6)
    reply = world.call("count"), "1"
    whole = world.scripted(*reply)
    await world.gather(whole, asked, world.open_store(tmp_path / "whole", asked))

    first = world.by_place(lambda group, chain, turn: reply[turn] if group < "0-3" else EngineError("dead"))
    path = tmp_path / "resumed"
    config = world.config(max_concurrency=1)
    with pytest.raises(EngineError, match="3 of 6 groups"):
        await world.gather(first, asked, world.open_store(path, asked), config=config)
    kept = stored(path)
    assert set(kept) == {"0-0", "0-1", "0-2"}

    second = world.scripted(*reply)
    seen = []
    collected = await world.gather(second, asked, world.open_store(path, asked), on_progress=seen.append)
    assert set(chains_of(second)) == {f"0-{index}/{chain}" for index in (3, 4, 5) for chain in (0, 1)}
    assert set(chains_of(second).values()) == {1}
    assert (seen[0].chains_done, collected.progress.chains_done) == (7, 12)
    resumed, uninterrupted = stored(path), stored(tmp_path / "whole")
    assert all(resumed[group] == kept[group] for group in kept)
    for group_id, group in uninterrupted.items():
        for mine, other in zip(resumed[group_id].trajectories, group.trajectories, strict=True):
            assert [s.token_ids.tolist() for s in mine.segments] == [s.token_ids.tolist() for s in other.segments]
    seeds = {request.request_id: request.seed for request in whole.requests}
    assert all(seeds[request.request_id] == request.seed for request in second.requests)
    assert seeds["0-4/1/1"] == RolloutSeeds(run_seed=0, step=0).turn(4, 1, 1)
    assert len(set(seeds.values())) == len(seeds)


async def test_a_complete_collection_asks_for_nothing(world, tmp_path):
    asked = world.problems(2)
    await world.gather(world.scripted("4"), asked, world.open_store(tmp_path, asked))
    again = world.scripted("5")
    collected = await world.gather(again, asked, world.open_store(tmp_path, asked))
    assert again.requests == []
    assert collected.manifest.complete
    assert collected.progress.chains_done == collected.progress.chains == 4


async def test_when_the_time_is_over_unfinished_groups_are_dropped_with_the_reason(world, tmp_path):
    asked = world.problems(4)
    slow = {("0-1", 1), ("0-3", 0), ("0-3", 1)}
    stuck = asyncio.Event()

    async def delay(request):
        if world.place(request)[:2] in slow:
            await stuck.wait()

    store = world.open_store(tmp_path, asked)
    seen = []
    collected = await world.gather(
        world.scripted("4", delay=delay),
        asked,
        store,
        config=world.config(stage_timeout_seconds=0.3),
        on_progress=seen.append,
    )
    assert set(stored(tmp_path)) == {"0-0", "0-2"}
    assert collected.manifest.complete
    assert collected.manifest.dropped_groups.keys() == {"0-1", "0-3"}
    assert collected.manifest.dropped_groups["0-1"].startswith("1 of 2 chains had ended")
    assert "0.3 s (rollout.stage_timeout_seconds)" in collected.manifest.dropped_groups["0-3"]
    assert seen[-1].dropped_groups == 2


async def test_cancelling_keeps_finished_groups_and_cancels_chains_in_flight(world, tmp_path):
    asked = world.problems(3)

    async def delay(request):
        if request.request_id.startswith("0-2"):
            await asyncio.Event().wait()

    generate = world.scripted("4", delay=delay)
    seen = []
    # So long a flush window that only the cancellation can be what writes the groups.
    config = world.config(flush_seconds=1000)
    task = asyncio.create_task(
        world.gather(generate, asked, world.open_store(tmp_path, asked), config=config, on_progress=seen.append)
    )
    await world.until(lambda: bool(seen) and seen[-1].chains_done == 4 and generate.in_flight == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(stored(tmp_path)) == {"0-0", "0-1"}
    assert set(generate.cancelled) == {"0-2/0/0", "0-2/1/0"}
    assert not read_rollout_manifest(StepDirectory(tmp_path)).complete


async def test_a_finished_group_is_on_disk_while_others_still_run(world, tmp_path):
    asked = world.problems(2)
    gate = asyncio.Event()

    async def delay(request):
        if request.request_id.startswith("0-1"):
            await gate.wait()

    task = asyncio.create_task(world.gather(world.scripted("4", delay=delay), asked, world.open_store(tmp_path, asked)))
    directory = StepDirectory(tmp_path)
    await world.until(lambda: read_rollout_manifest(directory).done == {"0-0"})
    assert set(stored(tmp_path)) == {"0-0"}
    gate.set()
    await task


async def test_groups_that_finish_together_share_a_part_and_parts_have_a_largest_size(world, tmp_path):
    asked = world.problems(10)
    collected = await world.gather(
        world.scripted("4"),
        asked,
        world.open_store(tmp_path, asked),
        config=world.config(flush_seconds=1000, groups_per_part=4),
    )
    assert [len(part.groups) for part in collected.manifest.parts] == [4, 4, 2]


async def test_no_more_chains_run_than_allowed_and_they_begin_in_order(world, tmp_path):
    asked = world.problems(6)
    generate = world.scripted(world.call("count"), "1")
    config = world.config(max_concurrency=3)
    await world.gather(generate, asked, world.open_store(tmp_path, asked), config=config)
    assert generate.max_in_flight <= 3
    first_turns = [request.request_id for request in generate.requests if request.request_id.endswith("/0")]
    assert first_turns == [f"0-{group}/{chain}/0" for group in range(6) for chain in range(2)]


async def test_a_chain_that_has_begun_never_waits_for_one_that_has_not(world, tmp_path):
    """With one slot, a chain plays all its turns before the next chain begins."""
    asked = world.problems(2)
    generate = world.scripted(world.call("count"), world.call("count"), "2")
    config = world.config(max_concurrency=1)
    await world.gather(generate, asked, world.open_store(tmp_path, asked), config=config)
    chains = [request.request_id.rsplit("/", 1)[0] for request in generate.requests]
    assert [chain for chain, _ in itertools.groupby(chains)] == ["0-0/0", "0-0/1", "0-1/0", "0-1/1"]


async def test_a_slow_chain_holds_up_no_other(world, tmp_path):
    asked = world.problems(5)
    gate = asyncio.Event()

    async def delay(request):
        if request.request_id.startswith("0-0/0/"):
            await gate.wait()

    seen = []
    task = asyncio.create_task(
        world.gather(
            world.scripted(world.call("count"), "1", delay=delay),
            asked,
            world.open_store(tmp_path, asked),
            config=world.config(max_concurrency=2),
            on_progress=seen.append,
        )
    )
    await world.until(lambda: bool(seen) and seen[-1].chains_done == 9)
    gate.set()
    assert (await task).progress.chains_done == 10


async def test_a_full_disk_ends_the_collection_with_the_stores_own_error(world, tmp_path, monkeypatch):
    asked = world.problems(8)
    store = world.open_store(tmp_path, asked)
    append = store.append

    def refuse_the_second(groups):
        if store.done:
            raise ShardError("part-00001.arrow: the disk is full")
        return append(groups)

    monkeypatch.setattr(store, "append", refuse_the_second)
    with pytest.raises(ShardError, match="disk is full"):
        await world.gather(world.scripted("4"), asked, store, config=world.config(groups_per_part=2))
    assert len(stored(tmp_path)) == 2


async def test_writing_blocks_neither_the_event_loop_nor_waits_for_blocking_tools(world):
    release, entered = threading.Event(), threading.Event()
    batches = []

    def append(groups):
        entered.set()
        assert release.wait(10)
        batches.append(list(groups))

    writer = GroupWriter(append, flush_seconds=0.0, groups_per_part=10)
    task = asyncio.create_task(writer.run())
    writer.put("first")
    await world.until(entered.is_set)  # the loop goes on while the write is stuck
    writer.put("second")
    writer.put("third")
    task.cancel()
    drained = asyncio.create_task(writer.drain())
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await drained
    assert batches == [["first"], ["second", "third"]]


async def test_the_wall_time_is_divided_into_generation_tools_and_our_own(world, tmp_path):
    asked = world.problems(2)
    collected = await world.gather(world.scripted(world.call("count"), "1"), asked, world.open_store(tmp_path, asked))
    seconds = collected.seconds
    assert seconds.generate > 0
    assert seconds.tools > 0
    assert seconds.overhead > 0
    assert seconds.total == pytest.approx(seconds.generate + seconds.tools + seconds.overhead)


async def test_progress_counts_up_and_ends_with_everything(world, tmp_path):
    asked = world.problems(3)
    seen = []
    await world.gather(world.scripted("4"), asked, world.open_store(tmp_path, asked), on_progress=seen.append)
    assert [progress.chains_done for progress in seen] == [1, 2, 3, 4, 5, 6, 6]
    assert seen[-1] == replace(seen[-1], groups=3, groups_done=3, chains=6, sampled_tokens=12, failures=0)


async def test_a_problem_that_the_store_does_not_know_how_to_place_is_refused(world, tmp_path):
    asked = world.problems(2)
    store = world.open_store(tmp_path, asked)
    with pytest.raises(ValueError, match="1 groups that have no problem here, 0-1"):
        await world.gather(world.scripted("4"), asked[:1], store)
    with pytest.raises(ValueError, match="unique"):
        await world.gather(world.scripted("4"), [*asked, asked[0]], store)


faults = st.sampled_from(
    ["4", "4", "4", "", "infrastructure", "environment", "bug", "<tool_call>{}</tool_call>", "x" * 300, "call"]
)


@settings(max_examples=30, deadline=None)
@given(
    plan=st.lists(st.lists(faults, min_size=3, max_size=3), min_size=1, max_size=12),
    chains=st.integers(1, 4),
    concurrency=st.integers(1, 8),
    retries=st.integers(0, 2),
)
def test_whatever_breaks_every_chain_is_counted_exactly_once(world, plan, chains, concurrency, retries):
    """Faults by problem and turn; a breaker that never trips, so that everything must end in the store."""
    asked = world.problems(len(plan))
    errors = {"infrastructure": gone, "environment": lambda: EnvironmentFailure("x", where="tool:x"), "bug": KeyError}

    def script(group, chain, turn):
        step = plan[int(group.split("-")[1])][(turn + chain) % 3]
        if step == "call":
            return world.call("count")
        return errors[step]() if step in errors else step

    async def play(path):
        store = world.open_store(path, asked, chains=chains)
        config = world.config(
            chains=chains, max_concurrency=concurrency, retries=retries, max_consecutive_failures=10**6
        )
        return await world.gather(world.by_place(script), asked, store, config=config)

    with tempfile.TemporaryDirectory() as folder:
        collected = asyncio.run(play(Path(folder)))
        trajectories = [trajectory for group in stored(Path(folder)).values() for trajectory in group.trajectories]
    assert Counter(t.id for t in trajectories) == {f"0-{i}/{c}": 1 for i in range(len(plan)) for c in range(chains)}
    failed = [t for t in trajectories if t.failure is not None]
    assert {t.stop for t in failed} <= {StopReason.FAILED}
    assert all(t.num_sampled > 0 for t in trajectories if t.failure is None)
    assert collected.progress.failures == len(failed)
    assert collected.progress.chains_done == len(trajectories) == collected.manifest.requested
    assert collected.manifest.complete


async def test_the_first_prompt_is_rendered_once_per_problem_and_chains_do_not_share_its_history(world, tmp_path):
    rendered = []

    class Recording(world.CharacterAgent):
        def build_messages(self, problem):
            rendered.append(problem.id)
            return super().build_messages(problem)

    asked = world.problems(3)
    generate = world.scripted(world.call("count"), world.call("count"), "2")
    await world.gather(
        generate,
        asked,
        world.open_store(tmp_path, asked, chains=4),
        agent=Recording(chat=world.CharacterChat(rewrites=True)),
        config=world.config(chains=4),
    )
    assert rendered == ["p0", "p1", "p2"]
    prompts = {world.place(request): world.CharacterChat().decode(request.token_ids) for request in generate.requests}
    for chain in range(4):
        asked_first = world.call("count")
        assert prompts["0-1", chain, 2] == f"Q question 1|A {asked_first}|T 1|A ...|T 2|A "
