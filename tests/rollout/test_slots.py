"""Slots are given by rank, then in the order of asking; none is lost, none is given twice. In virtual time."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.errors import EngineError
from agentfly_lib.rollout import ChainSlots, RolloutSeeds
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from benchmarks.virtual_time import run

WORK = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 30), st.booleans()), max_size=40)


@given(size=st.integers(1, 5), work=WORK)
@settings(max_examples=150, deadline=None)
def test_whoever_waits_with_the_lowest_rank_is_next_and_no_slot_is_lost(size, work):
    slots, held, waiting, given_to = ChainSlots(size), 0, dict[int, tuple[int, float]](), []

    async def user(name, rank, start, hold, gives_up):
        nonlocal held
        await asyncio.sleep(start)
        waiting[name] = rank, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(hold if gives_up else None):
                await slots.acquire(rank)
        except TimeoutError:
            del waiting[name]
            return
        del waiting[name]
        now = asyncio.get_running_loop().time()
        passed = [other for other, since in waiting.values() if other < rank and since < now]
        assert not passed, "somebody of a lower rank who was there before was passed"
        given_to.append(name)
        held += 1
        assert held <= size
        await asyncio.sleep(hold)
        held -= 1
        slots.release()

    async def everybody():
        async with asyncio.TaskGroup() as group:
            for name, entry in enumerate(work):
                group.create_task(user(name, *entry))

    run(everybody())
    assert slots.free == size
    assert {name for name, entry in enumerate(work) if not entry[3]} <= set(given_to)


def test_a_wait_that_is_given_up_as_it_is_answered_leaves_the_slot_to_the_next():
    async def scene():
        slots = ChainSlots(1)
        await slots.acquire(0)
        first = asyncio.create_task(slots.acquire(0))
        second = asyncio.create_task(slots.acquire(0))
        await asyncio.sleep(0)
        slots.release()  # to the first, who has not heard of it yet
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        slots.release()
        assert slots.free == 1

    run(scene())


def test_there_is_no_pool_without_slots():
    with pytest.raises(ValueError, match="at least one slot, not 0"):
        ChainSlots(0)


def asked_in(step: int, count: int, world) -> list:
    return [
        (f"{step}-{index}", replace(problem, id=f"{step}-{index}"))
        for index, (_, problem) in enumerate(world.problems(count))
    ]


def open_step(path, step: int, asked) -> RolloutStore:
    return RolloutStore.open(
        StepDirectory(path / str(step)), step=step, policy_version=0, group_ids=[name for name, _ in asked], chains=2
    )


def test_a_later_collection_fills_what_long_chains_of_an_earlier_one_leave_and_never_passes_it(world, tmp_path):
    slots, begun, in_flight, most = ChainSlots(4), [], 0, 0

    async def delay(request):
        nonlocal in_flight, most
        group, chain, _ = world.place(request)
        begun.append((int(group.split("-")[0]), asyncio.get_running_loop().time()))
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(100.0 if (group, chain) == ("0-0", 0) else 1.0)
        in_flight -= 1

    generate = world.by_place(lambda group, chain, turn: "4", delay=delay)

    async def collection(step: int):
        asked = asked_in(step, 5, world)
        await world.gather(
            generate,
            asked,
            open_step(tmp_path, step, asked),
            slots=slots,
            rank=step,
            seeds=RolloutSeeds(run_seed=0, step=step),
        )
        return asyncio.get_running_loop().time()

    async def both():
        async with asyncio.TaskGroup() as group:
            later, earlier = group.create_task(collection(1)), group.create_task(collection(0))
        return earlier.result(), later.result()

    earlier, later = run(both())
    assert most == 4
    assert slots.free == 4
    # The later one asked first and has all slots for a second; then the earlier one gets each that becomes free.
    steps = [step for step, _ in begun]
    assert steps == [1] * 4 + [0] * 10 + [1] * 6
    assert later < 10 < 100 < earlier, "the long chain holds one slot, and nobody waits for it but its own step"


def test_a_collection_that_breaks_gives_back_every_slot(world, tmp_path):
    slots = ChainSlots(3)
    asked = asked_in(0, 6, world)

    def breaks(group, chain, turn):
        return EngineError("the engine died") if group == "0-1" else "4"

    async def scene():
        with pytest.raises(EngineError, match="the engine died"):
            await world.gather(world.by_place(breaks), asked, open_step(tmp_path, 0, asked), slots=slots)
        await asyncio.sleep(0)
        assert slots.free == 3
        done = await world.gather(
            world.by_place(lambda group, chain, turn: "4"), asked, open_step(tmp_path, 0, asked), slots=slots
        )
        assert done.manifest.complete

    run(scene())
