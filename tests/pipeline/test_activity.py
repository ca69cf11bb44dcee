"""Every instant of a step belongs to one kind; how much of an update a collection was going on is measured."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from agentfly_lib.pipeline.activity import RunActivity
from agentfly_lib.pipeline.times import StepTimes
from agentfly_lib.refs import StepReport
from agentfly_lib.rewards.stage import ScoredStep
from agentfly_lib.rollout import Collected, CollectProgress, CollectTimes
from agentfly_lib.store.manifest import RolloutManifest
from agentfly_lib.store.scores import ScoreManifest


class Hand:
    """A clock that somebody turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_an_update_beside_a_collection_by_hand(hand: Hand) -> None:
    activity = RunActivity(hand)
    hand.wait(1)  # quiet
    with activity.updating():
        hand.wait(2)  # the update alone
        with activity.collecting():
            hand.wait(3)  # a collection that neither generates nor uses a tool
            with activity.generating():
                hand.wait(4)
                with activity.using_tools():
                    hand.wait(5)
            with activity.using_tools():
                hand.wait(6)
        hand.wait(7)
    hand.wait(8)  # quiet
    found = activity.so_far()
    assert (found.wall, found.generation, found.tools, found.update) == (36, 4 + 5, 6, 2 + 3 + 7)
    assert (found.updating, found.overlap, found.engine_idle) == (27, 18, 36 - 9)
    assert found.quiet == ((100, 101), (128, 136))
    assert found.quiet_within([(90, 100.5), (100.75, 130), (135, 200)]) == 0.5 + 0.25 + 2 + 1


def test_what_belongs_to_no_step_is_in_no_kind_and_what_goes_on_goes_on(hand: Hand) -> None:
    activity = RunActivity(hand)
    with activity.collecting(), activity.generating():
        hand.wait(1)
        with activity.outside():
            hand.wait(50)
        hand.wait(2)
        activity.restart()
        hand.wait(4)
    assert (activity.so_far().wall, activity.so_far().generation) == (4, 4)


def test_a_step_that_is_begun_again_keeps_its_clock(hand: Hand) -> None:
    times = StepTimes()
    times.activity = RunActivity(hand)
    times.begin(3)
    hand.wait(5)  # its weights were on their way to an engine that died
    times.begin(3)
    hand.wait(2)
    assert times.activity.so_far().wall == 7
    times.begin(4)
    assert times.activity.so_far().wall == 0


KINDS = ("generating", "using_tools", "collecting", "updating", "outside")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 8), st.integers(0, 8)), max_size=25))
@settings(max_examples=200, deadline=None)
def test_kinds_add_up_however_work_overlaps(work) -> None:
    """Against a plain count of each second."""
    hand = Hand()
    activity = RunActivity(hand)
    events = sorted({0, *(start for _, start, _ in work), *(start + length for _, start, length in work)})
    open_now: dict[int, ExitStack] = {}
    for at in events:
        hand.now = 100.0 + at
        for number, (kind, start, length) in enumerate(work):
            if start + length == at and number in open_now:
                open_now.pop(number).close()
            if start == at and length:
                open_now[number] = ExitStack()
                open_now[number].enter_context(getattr(activity, kind)())
    found = activity.so_far()

    def on(second: int) -> set[str]:
        return {kind for kind, start, length in work if start <= second < start + length}

    seconds = [on(second) for second in range(max(events)) if "outside" not in on(second)]
    generation = sum("generating" in each for each in seconds)
    tools = sum("using_tools" in each and "generating" not in each for each in seconds)
    update = sum("updating" in each and not each & {"generating", "using_tools"} for each in seconds)
    assert (found.wall, found.generation, found.tools, found.update) == (len(seconds), generation, tools, update)
    assert found.overlap == sum({"updating", "collecting"} <= each for each in seconds)
    assert found.updating == sum("updating" in each for each in seconds)
    assert found.engine_idle == len(seconds) - generation
    assert sum(end - start for start, end in found.quiet) == sum(not each for each in seconds)


def collected(seconds: float) -> Collected:
    return Collected(
        manifest=RolloutManifest(step=0, policy_version=0, chains=1, group_ids=()),
        seconds=CollectTimes(generate=seconds, tools=0.0, overhead=0.0),
        progress=CollectProgress(groups=0, groups_done=0, chains=0, chains_done=0),
    )


def scored(*busy: tuple[float, float]) -> ScoredStep:
    return ScoredStep(manifest=ScoreManifest(reward="r"), groups=[], busy=busy)


def report(step: int, **seconds: float) -> StepReport:
    return StepReport(step=step, policy_version=step + 1, metrics={}, seconds=seconds, weights_digest="")


def timed(hand: Hand, ahead: int) -> StepTimes:
    times = StepTimes(ahead)
    times.activity = RunActivity(hand)
    return times


PARTS = ("generation", "tools", "reward", "forward_backward", "overhead")


def test_in_turn_every_part_has_what_it_took(hand: Hand) -> None:
    times = timed(hand, ahead=0)
    times.begin(3)
    hand.wait(1)  # weight sync
    with times.activity.collecting(), times.activity.generating():
        hand.wait(10)
    times.collected(3, collected(10))
    hand.wait(2)
    times.scored(3, scored((105, 107), (111, 112.5)))  # the first beside the collection, the second after it
    with times.activity.updating():
        hand.wait(5)
    metrics = times.metrics(report(3, forward_backward=3.0, optimizer=1.0, pack=1.0, total=5.0))
    expected = dict(zip(PARTS, (10, 0, 1.5, 4, 18 - 15.5), strict=True))
    assert {part: metrics[f"time/{part}/seconds"] for part in PARTS} == expected
    assert metrics["time/step/seconds"] == 18
    assert (metrics["time/collect/seconds"], metrics["time/update/seconds"]) == (10, 5)
    assert "time/overlap/fraction" not in metrics, "nothing can overlap"
    assert (metrics["time/engine_idle/seconds"], metrics["time/engine_idle/fraction"]) == (8, 8 / 18)


def test_beside_a_collection_an_update_costs_only_what_it_took_alone(hand: Hand) -> None:
    times = timed(hand, ahead=1)
    times.begin(0)
    with times.activity.collecting(), times.activity.generating():
        hand.wait(10)
    times.collected(0, collected(10))
    times.scored(0, scored())
    with times.activity.updating():
        with times.activity.collecting(), times.activity.generating():
            hand.wait(6)
            times.note({"ahead": 1.0}, 1)
        times.collected(1, collected(6))  # of the next step, and kept for it
        hand.wait(2)
    metrics = times.metrics(report(0, forward_backward=4.0, total=8.0))
    # A quarter of the update was alone; so much of the learner's 4 seconds is a part of the step.
    expected = dict(zip(PARTS, (16, 0, 0, 1, 1), strict=True))
    assert {part: metrics[f"time/{part}/seconds"] for part in PARTS} == expected
    assert (metrics["time/overlap/seconds"], metrics["time/overlap/fraction"]) == (6, 0.75)
    assert metrics["time/collect/seconds"] == 10
    assert "ahead" not in metrics
    hand.wait(2)  # step 0 is written down, in the time of step 1
    assert times.metrics(report(0)) == metrics, "asked again, because that failed"
    times.begin(1)
    hand.wait(1)
    later = times.metrics(report(1))
    assert (later["time/collect/seconds"], later["ahead"], later["time/step/seconds"]) == (6, 1.0, 3)


def test_steps_that_nobody_will_ask_for_are_not_kept(hand: Hand) -> None:
    times = timed(hand, ahead=1)
    for step in range(5):  # a flow that only collects never begins a step
        times.scored(step, scored())
        times.note({"a": 1.0}, step)
    assert set(times._scored) == set(times._notes) == {0, 1}
