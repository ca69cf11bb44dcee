"""An engine sleeps once and wakes once, whatever failed in between and however often it was asked."""

import pytest

from agentfly_lib.inference.rest import Rest


class FakeEngine:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failure: Exception | None = None

    def sleep(self, level: int = 1) -> None:
        self._call(f"sleep {level}")

    def wake_up(self) -> None:
        self._call("wake")

    def _call(self, what: str) -> None:
        self.calls.append(what)
        failure, self.failure = self.failure, None
        if failure:
            raise failure


def test_each_change_is_made_once():
    engine, rest = FakeEngine(), Rest()
    assert not rest.wake(engine)
    assert [rest.sleep(engine, 2), rest.sleep(engine, 2), rest.sleep(engine, 1)] == [True, False, False]
    assert rest.level == 2
    assert [rest.wake(engine), rest.wake(engine)] == [True, False]
    assert rest.level == 0
    assert engine.calls == ["sleep 2", "wake"]


def test_a_sleep_that_failed_is_woken_from_and_a_wake_that_failed_is_tried_again():
    engine, rest = FakeEngine(), Rest()
    engine.failure = RuntimeError("no memory to keep the weights in")
    with pytest.raises(RuntimeError):
        rest.sleep(engine, 1)
    engine.failure = RuntimeError("the GPU is full")
    with pytest.raises(RuntimeError):
        rest.wake(engine)
    assert rest.level == 1
    assert rest.wake(engine)
    assert rest.sleep(engine, 1)
    assert engine.calls == ["sleep 1", "wake", "wake", "sleep 1"]
