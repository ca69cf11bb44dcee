"""Children are kept alive within bounds and ended in order; in virtual time, with children that die when told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.errors import UserError
from agentfly_lib.serve.child import Child
from agentfly_lib.serve.keeper import Keeper, Restarts


class Life:
    """A clock that only sleeping moves, and the children of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.said: list[str] = []
        self.ends: list[str] = []
        self.starts: dict[str, list[FakeProcess]] = {}
        self.healthy: set[str] = set()
        self.plan: list[tuple[float, FakeProcess, int]] = []

    def child(self, name: str) -> Child:
        log = self.folder / f"{name}.log"
        log.write_text(f"what {name} said last\n")
        return Child(name=name, command=[name], log=log, healthy=lambda: name in self.healthy, stop_seconds=7.0)

    def start(self, child: Child) -> FakeProcess:
        process = FakeProcess(child, self)
        self.starts.setdefault(child.name, []).append(process)
        return process

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def keeper(self, **restarts: float) -> Keeper:
        return Keeper(
            self.said.append,
            restarts=Restarts(**restarts),  # type: ignore[arg-type]
            clock=lambda: self.now,
            sleep=self.sleep,
            start=self.start,  # type: ignore[arg-type]
        )


class FakeProcess:
    def __init__(self, child: Child, life: Life) -> None:
        self.child, self.life, self.status = child, life, None
        self.began = life.now

    def ended(self) -> int | None:
        return self.status

    def ask_to_end(self) -> None:
        self.life.ends.append(f"ask {self.child.name}")

    def end(self, seconds: float) -> None:
        self.life.ends.append(f"end {self.child.name} {seconds:g}")


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_waits_until_all_are_well(life: Life) -> None:
    with life.keeper() as keeper:
        for name in ("a", "b"):
            keeper.start(life.child(name))
        life.healthy = {"a"}
        with pytest.raises(UserError, match=r"the b did not answer within 5 s.*\n  what b said last"):
            keeper.wait(["a", "b"], 5.0)
        life.healthy = {"a", "b"}
        keeper.wait(["a", "b"], 5.0)


def test_a_child_that_dies_at_its_start_is_no_riddle(life: Life) -> None:
    with life.keeper() as keeper:
        keeper.start(life.child("a"))
        life.starts["a"][0].status = 3
        with pytest.raises(
            UserError, match=r"the a ended with exit status 3 instead of starting.*\n  what a said last"
        ):
            keeper.wait(["a"], 5.0)


def test_the_newest_is_ended_first_and_given_its_time(life: Life) -> None:
    with life.keeper() as keeper:
        keeper.start(life.child("server"))
        keeper.start(life.child("worker"))
    assert life.ends == ["ask worker", "end worker 7", "ask server", "end server 7"]


def test_all_are_ended_when_something_goes_wrong(life: Life) -> None:
    def run() -> None:
        with life.keeper() as keeper:
            keeper.start(life.child("server"))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run()
    assert life.ends == ["ask server", "end server 7"]


def test_one_that_dies_is_started_again_after_a_pause_that_doubles(life: Life) -> None:
    with life.keeper(most=3, first_pause=4.0) as keeper:
        keeper.start(life.child("a"))
        life.healthy = {"a"}

        def kill_twice() -> bool:
            newest = life.starts["a"][-1]
            if len(life.starts["a"]) < 3 and life.now - newest.began >= 10:
                newest.status = -9
            return life.now > 60

        keeper.watch(kill_twice)
    first, second, third = (process.began for process in life.starts["a"])
    assert (second - first, third - second) == (10 + 4, 10 + 8)
    assert [text for text in life.said if "ended" in text] == [
        "the a ended with exit status -9; started again in 4 s",
        "the a ended with exit status -9; started again in 8 s",
    ]
    assert life.said.count("the a is back") == 2


def test_what_keeps_dying_ends_everything(life: Life) -> None:
    def kill() -> bool:
        life.starts["a"][-1].status = 1
        return life.now > 1000

    def run() -> None:
        with life.keeper(most=2) as keeper:
            keeper.start(life.child("b"))
            keeper.start(life.child("a"))
            keeper.watch(kill)

    with pytest.raises(UserError, match=r"the a has died 3 times in 10 minutes(?s:.*)what a said last"):
        run()
    assert len(life.starts["a"]) == 3
    assert life.ends[-2:] == ["ask b", "end b 7"]


def test_deaths_of_long_ago_are_forgotten(life: Life) -> None:
    with life.keeper(most=1, seconds=100.0) as keeper:
        keeper.start(life.child("a"))

        def kill_now_and_then() -> bool:
            newest = life.starts["a"][-1]
            if life.now - newest.began >= 150:
                newest.status = 1
            return life.now > 1000

        keeper.watch(kill_now_and_then)
    assert len(life.starts["a"]) >= 6
