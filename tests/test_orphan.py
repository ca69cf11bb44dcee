"""A process that nobody calls ends; one that is called, or still at work on a call, does not."""

import threading

from agentfly_lib.orphan import ORPHANED_SECONDS, OrphanTimer


def test_without_a_call_it_ends_once():
    ended = threading.Semaphore(0)
    OrphanTimer("the learner", seconds=0.01, end=ended.release)
    assert ended.acquire(timeout=10)
    assert not ended.acquire(blocking=False)


def test_a_call_that_runs_is_no_silence_and_the_time_counts_from_its_end():
    ended = threading.Event()
    timer = OrphanTimer("the learner", end=ended.set)
    with timer.call():
        timer.limit(0.0)
        assert not ended.wait(0.05)
    assert ended.wait(10)


def test_the_limit_is_three_hours():
    assert ORPHANED_SECONDS == 3 * 60 * 60
