"""A stage that lost its engines gets them back: with the weights that they served, without asking a learner at work."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from agentfly_lib.pipeline import workers
from agentfly_lib.pipeline.learning import Learning
from agentfly_lib.refs import EngineRef, LearnerRef


def engines(version: int) -> EngineRef:
    return EngineRef(names=("engine-0",), namespace="n", policy_version=version)


class Keeper:
    def __init__(self, kept: EngineRef | None) -> None:
        self.kept = kept

    async def revived(self) -> EngineRef | None:
        return self.kept

    async def ask(self) -> EngineRef:
        return engines(0)


def session(kept: EngineRef | None, *, trains: bool = True) -> Any:
    return SimpleNamespace(keeper=Keeper(kept), trains=trains, learning=Learning())


@pytest.fixture
def readied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions to which engines and learner were brought."""
    found: list[int] = []

    async def ready(_session: Any, version: int) -> tuple[EngineRef, None]:
        found.append(version)
        return engines(version), None

    monkeypatch.setattr(workers, "ready", ready)
    return found


async def test_a_first_try_takes_them_as_they_are(readied: list[int]) -> None:
    assert await workers.living_engines(session(None), engines(3), again=False) == engines(3)
    assert readied == []


async def test_what_was_kept_of_their_weights_is_enough(readied: list[int]) -> None:
    during = session(engines(4))
    async with during.learning.turn():  # an update is under way
        assert await workers.living_engines(during, engines(3), again=True) == engines(4)
    assert readied == []


async def test_else_the_learner_gives_its_own_once_it_is_free(readied: list[int]) -> None:
    during = session(None)
    async with during.learning.turn() as turn:
        asked = asyncio.create_task(workers.living_engines(during, engines(3), again=True))
        for _ in range(5):
            await asyncio.sleep(0)
        assert readied == []
        turn.holds(5)  # the update ends
    assert await asked == engines(5)
    assert readied == [5]


async def test_where_nobody_trains_any_engine_will_do(readied: list[int]) -> None:
    assert await workers.living_engines(session(None, trains=False), engines(0), again=True) == engines(0)
    assert readied == []


class Sleeping(Keeper):
    """Engines that share their GPUs with the learner."""

    def __init__(self) -> None:
        super().__init__(None)
        self.resting = False
        self.served: list[int] = []

    async def serve(self, version: int, _engines: EngineRef, _learner: Any) -> EngineRef:
        self.resting = False
        self.served.append(version)
        return engines(version)


async def test_after_a_checkpoint_that_was_tried_again_engines_that_had_to_sleep_for_it_serve(monkeypatch) -> None:
    keeper = Sleeping()
    held = LearnerRef(names=("rank",), namespace="n", policy_version=3)

    async def learner_at(_session: Any, _version: int) -> LearnerRef:
        keeper.resting = True  # it trains again on what is stored
        return held

    monkeypatch.setattr(workers, "learner_at", learner_at)
    of_run: Any = SimpleNamespace(keeper=keeper)
    assert await workers.learner_to_save(of_run, 3, held, again=False) is held
    assert keeper.served == []
    assert await workers.learner_to_save(of_run, 3, held, again=True) is held
    assert keeper.served == [3]
