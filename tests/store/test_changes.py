"""Who follows a file sees at once what this process writes, and soon what another does; nothing is missed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

from agentfly_lib.store import changes
from agentfly_lib.store.changes import LOOK_SECONDS, changed, looks_at
from benchmarks import virtual_time

FILE = Path("MANIFEST.json")


async def times_of_looks(until: float, path: Path = FILE) -> list[float]:
    clock, times = asyncio.get_running_loop(), []
    async with contextlib.aclosing(looks_at(path)) as looks:
        async for _ in looks:
            times.append(clock.time())
            if clock.time() >= until:
                return times
    raise AssertionError


def test_a_change_of_this_process_is_looked_at_at_once_and_any_other_twice_a_second():
    async def story():
        clock = asyncio.get_running_loop()
        clock.call_at(0.7, changed, FILE)
        clock.call_at(0.8, changed, Path("another"))
        assert await times_of_looks(2.0) == [0.0, LOOK_SECONDS, 0.7, 0.7 + LOOK_SECONDS, 0.7 + 2 * LOOK_SECONDS, 2.2]
        assert not changes._followers

    virtual_time.run(story())


async def test_a_change_during_a_look_from_another_thread_is_not_missed():
    clock, looked = asyncio.get_running_loop(), 0
    began = clock.time()
    async with asyncio.timeout(10), contextlib.aclosing(looks_at(FILE)) as looks:
        async for _ in looks:
            looked += 1
            if looked == 1:
                began = clock.time()
                thread = threading.Thread(target=changed, args=[FILE])
                thread.start()
                thread.join()
            else:
                assert clock.time() - began < LOOK_SECONDS / 2
                break


def test_who_was_cancelled_or_whose_loop_has_ended_follows_no_more():
    async def story():
        following = asyncio.ensure_future(times_of_looks(100.0))
        await asyncio.sleep(1)
        following.cancel()
        await asyncio.wait({following})

    virtual_time.run(story())
    changed(FILE)
    assert not changes._followers
