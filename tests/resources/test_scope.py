"""What a trajectory holds: opened once, at first use; closed at the end, all of it, in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from agentfly_lib.resources import ProcessSpec, ResourceScope, ResourceSpec
from benchmarks import virtual_time


@dataclass(frozen=True)
class Spec:
    """Writes down what happens to it."""

    name: str
    log: list[str] = field(default_factory=list, compare=False)
    fails: bool = False
    stuck: bool = False

    def check(self) -> None: ...

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        self.log.append(f"open {self.name}")
        if self.fails:
            raise OSError("no room")
        try:
            yield self.name.upper()
        finally:
            if self.stuck:
                await asyncio.Event().wait()
            self.log.append(f"close {self.name}")


def test_a_process_spec_is_one():
    assert isinstance(ProcessSpec(), ResourceSpec)
    assert ProcessSpec() == ProcessSpec()
    assert hash(ProcessSpec(environment={"A": "1"})) == hash(ProcessSpec(environment={"A": "1"}))


async def test_equal_specs_share_one_resource_also_when_asked_at_once():
    log: list[str] = []
    scope = ResourceScope()
    assert await asyncio.gather(*(scope.get(Spec("a", log)) for _ in range(5))) == ["A"] * 5
    assert scope[Spec("a")] == "A"
    assert log == ["open a"]
    await scope.aclose()
    assert log == ["open a", "close a"]


async def test_closed_in_reverse_order_closers_among_them():
    log: list[str] = []
    scope = ResourceScope()
    await scope.get(Spec("a", log))

    async def undo() -> None:
        log.append("undo")

    scope.at_end(undo)
    await scope.get(Spec("b", log))
    await scope.aclose()
    await scope.aclose()
    assert log == ["open a", "open b", "close b", "undo", "close a"]


async def test_one_that_did_not_open_may_open_the_next_time():
    log: list[str] = []
    scope = ResourceScope()
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            await scope.get(Spec("a", log, fails=True))
    assert log == ["open a"] * 2
    await scope.aclose()


async def test_one_that_fails_at_its_end_keeps_no_other_from_closing(caplog):
    log: list[str] = []
    scope = ResourceScope()
    await scope.get(Spec("a", log))

    async def broken() -> None:
        raise ValueError("broken closer")

    scope.at_end(broken)
    await scope.aclose()
    assert log == ["open a", "close a"]
    assert "broken closer" in caplog.text


async def test_one_that_hangs_is_given_up_and_the_others_close(caplog):
    log: list[str] = []
    scope = ResourceScope()
    await scope.get(Spec("a", log))
    await scope.get(Spec("b", log, stuck=True))
    await scope.aclose(seconds=0.01)
    assert log == ["open a", "open b", "close a"]
    assert "given up" in caplog.text


def test_any_number_that_hang_are_given_up_in_bounded_time_also_one_that_does_not_heed_it():
    async def story():
        log: list[str] = []
        scope = ResourceScope()
        await scope.get(Spec("a", log))

        async def stubborn() -> None:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1e6)
                    return

        async def hangs() -> None:
            await asyncio.Event().wait()

        for _ in range(2):
            scope.at_end(stubborn)
            scope.at_end(hangs)
        await scope.aclose(seconds=30)
        assert asyncio.get_running_loop().time() == pytest.approx(30 + 3 * 3)
        assert log == ["open a", "close a"]
        await asyncio.sleep(2e6)  # their ends

    virtual_time.run(story())


async def test_closing_goes_on_when_its_caller_is_cancelled():
    began, release, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    scope = ResourceScope()

    async def slow() -> None:
        began.set()
        await release.wait()
        done.set()

    scope.at_end(slow)
    closing = asyncio.ensure_future(scope.aclose())
    await began.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    release.set()
    await asyncio.wait_for(done.wait(), 5)


async def test_nothing_is_opened_after_the_end():
    scope = ResourceScope()
    await scope.aclose()
    with pytest.raises(RuntimeError, match="has ended"):
        await scope.get(Spec("a"))
    with pytest.raises(RuntimeError, match="has ended"):
        scope.at_end(asyncio.Event().wait)  # type: ignore[arg-type]


async def test_one_that_is_not_open_is_named():
    with pytest.raises(KeyError, match="is not open"):
        ResourceScope()[Spec("a")]
