"""Wall time is charged once, to the strongest thing in flight; by a hand-turned clock."""

from agentfly_lib.rollout import ActivityClock


class Hand:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_interval_belongs_to_exactly_one_kind():
    hand = Hand()
    clock = ActivityClock(hand)
    hand.now += 1  # nothing
    with clock.generating():
        hand.now += 2  # a generation
        with clock.generating():
            hand.now += 3  # two generations count once
            with clock.using_tools():
                hand.now += 4  # a tool beside a generation is hidden behind it
        hand.now += 5
    with clock.using_tools():
        hand.now += 6  # only a tool
        with clock.generating():
            hand.now += 7
    hand.now += 8
    times = clock.times()
    assert (times.generate, times.tools, times.overhead) == (2 + 3 + 4 + 5 + 7, 6, 1 + 8)
    assert times.total == hand.now - 100.0


def test_chains_that_overlap_in_time_but_do_not_nest():
    hand = Hand()
    clock = ActivityClock(hand)
    first, second = clock.generating(), clock.using_tools()
    first.__enter__()
    hand.now += 1
    second.__enter__()
    hand.now += 1
    first.__exit__(None, None, None)
    hand.now += 1
    second.__exit__(None, None, None)
    assert (clock.times().generate, clock.times().tools, clock.times().overhead) == (2, 1, 0)


def test_an_error_inside_ends_the_interval():
    hand = Hand()
    clock = ActivityClock(hand)
    try:
        with clock.generating():
            hand.now += 1
            raise KeyError
    except KeyError:
        hand.now += 1
    assert (clock.times().generate, clock.times().overhead) == (1, 1)
