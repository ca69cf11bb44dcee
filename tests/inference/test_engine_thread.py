"""The engine's thread: commands between steps, and a death that everyone hears of."""

import threading

import pytest

from agentfly_lib.errors import EngineError
from agentfly_lib.inference.engine_thread import EngineThread


class CountingEngine:
    """Has `work` steps to do; each returns its number."""

    def __init__(self):
        self.work, self.steps, self.fail_at = 0, 0, None
        self.done, self.closed = threading.Event(), threading.Event()
        self.engine_core = self

    def has_unfinished_requests(self):
        return self.work > 0

    def step(self):
        self.steps += 1
        if self.steps == self.fail_at:
            raise RuntimeError("out of memory")
        self.work -= 1
        if not self.work:
            self.done.set()
        return [self.steps]

    def shutdown(self):
        self.closed.set()


class Listener:
    """Collects what the thread tells."""

    def __init__(self):
        self.outputs, self.death, self.dead = [], None, threading.Event()

    def on_outputs(self, outputs):
        self.outputs.extend(outputs)

    def on_death(self, error):
        self.death = error
        self.dead.set()


@pytest.fixture
def engine():
    return CountingEngine()


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def thread(engine, listener):
    thread = EngineThread(lambda: engine, on_outputs=listener.on_outputs, on_death=listener.on_death)
    thread.start().result(5)
    yield thread
    assert thread.stop(5)


def test_it_steps_until_the_work_is_done_then_waits_for_commands(thread, engine, listener):
    thread.run(lambda e: setattr(e, "work", 3)).result(5)
    assert engine.done.wait(5)
    assert thread.run(lambda e: (e.steps, e.work)).result(5) == (3, 0)
    thread.stop(5)
    assert engine.closed.wait(5)
    assert listener.outputs == [1, 2, 3]


def test_commands_run_in_order_on_its_own_thread(thread):
    seen = []
    for number in range(5):
        last = thread.run(lambda e, n=number: seen.append((n, threading.current_thread().name)))
    last.result(5)
    assert seen == [(number, "vllm-engine") for number in range(5)]


def test_an_error_of_a_command_reaches_its_caller_only(thread):
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda e: 1 / 0).result(5)
    assert thread.run(lambda e: "alive").result(5) == "alive"


def test_a_command_cancelled_before_its_turn_does_not_run(thread):
    gate, ran = threading.Event(), []
    blocking = thread.run(lambda e: gate.wait(5))
    cancelled = thread.run(lambda e: ran.append(True))
    assert cancelled.cancel()
    gate.set()
    blocking.result(5)
    assert thread.run(lambda e: list(ran)).result(5) == []


def test_a_failing_step_ends_it_tells_everyone_and_refuses_later_commands(thread, engine, listener):
    engine.fail_at = 1
    thread.run(lambda e: setattr(e, "work", 1))
    assert listener.dead.wait(5)
    assert "out of memory" in str(listener.death)
    assert engine.closed.wait(5)
    with pytest.raises(EngineError, match="out of memory"):
        thread.run(lambda e: None)


def test_an_engine_that_cannot_be_built_says_why(listener):
    def build():
        raise OSError("no such model")

    thread = EngineThread(build, on_outputs=listener.on_outputs, on_death=listener.on_death)
    with pytest.raises(EngineError, match="OSError: no such model"):
        thread.start().result(5)
    with pytest.raises(EngineError, match="no such model"):
        thread.run(lambda e: None)


def test_stopping_twice_is_quiet_and_later_commands_are_refused(thread):
    assert thread.stop(5)
    assert thread.stop(5)
    with pytest.raises(EngineError, match="closed"):
        thread.run(lambda e: None)


def test_a_start_that_nobody_waits_for_any_more_can_still_be_stopped(engine, listener):
    building, built = threading.Event(), threading.Event()

    def build():
        building.set()
        built.wait(5)
        return engine

    thread = EngineThread(build, on_outputs=listener.on_outputs, on_death=listener.on_death)
    started = thread.start()
    assert building.wait(5)
    assert not started.cancel()
    assert not thread.stop(0)
    built.set()
    assert thread.stop(5)
    assert engine.closed.is_set()
