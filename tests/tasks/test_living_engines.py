"""A stage that lost its engines gets them back: with the weights that they served, without asking a learner at work."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from agentfly_lib.refs import EngineRef
from tasks import workers


def engines(version: int) -> EngineRef:
    return EngineRef(names=("engine-0",), namespace="n", policy_version=version)


class Keeper:
    def __init__(self, kept: EngineRef | None) -> None:
        self.kept = kept

    async def revived(self, _model: Any) -> EngineRef | None:
        return self.kept

    async def ask(self, _model: Any) -> EngineRef:
        return engines(0)


def session(kept: EngineRef | None, *, trains: bool = True) -> Any:
    return SimpleNamespace(keeper=Keeper(kept), trains=trains, resolved_model=None, learning=asyncio.Lock(), version=4)


@pytest.fixture
def readied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions to which engines and learner were brought."""
    found: list[int] = []

    async def ready(_session: Any, version: int) -> tuple[EngineRef, None]:
        found.append(version)
        return engines(version), None

    monkeypatch.setattr(workers, "ready", ready)
    return found


async def test_a_first_try_takes_them_as_they_are(readied: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_first_try", lambda: True)
    assert await workers.living_engines(session(None), engines(3)) == engines(3)
    assert readied == []


async def test_what_was_kept_of_their_weights_is_enough(readied: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_first_try", lambda: False)
    during = session(engines(4))
    async with during.learning:  # an update is under way
        assert await workers.living_engines(during, engines(3)) == engines(4)
    assert readied == []


async def test_else_the_learner_gives_its_own_once_it_is_free(
    readied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_first_try", lambda: False)
    during = session(None)
    async with during.learning:
        asked = asyncio.create_task(workers.living_engines(during, engines(3)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert readied == []
        during.version = 5  # the update ends
    assert await asked == engines(5)
    assert readied == [5]


async def test_where_nobody_trains_any_engine_will_do(readied: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_first_try", lambda: False)
    assert await workers.living_engines(session(None, trains=False), engines(0)) == engines(0)
    assert readied == []
