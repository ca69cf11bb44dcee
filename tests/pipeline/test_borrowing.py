"""What collections that overlap have borrowed is counted once, and the engine is closed with the session."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from agentfly_lib.pipeline import borrowing as subject
from agentfly_lib.pipeline.borrowing import Borrowing


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the engine has counted so far."""
    found = {"lent": 0.0, "alive/max": 0.0}

    async def aclose() -> None:
        found["closed"] = 1.0

    def make(run: str) -> Any:
        return SimpleNamespace(metrics=lambda: dict(found), aclose=aclose, pools=("a pool",))

    monkeypatch.setattr(subject, "ResourceEngine", make)
    return found


def test_by_hand(counted: dict[str, float]) -> None:
    borrowing = Borrowing("demo", AsyncExitStack())
    first = dict(counted)
    counted |= {"lent": 3.0, "alive/max": 2.0}
    second = dict(counted)
    counted |= {"lent": 7.0, "alive/max": 5.0}
    assert borrowing.since(first) == {"lent": 7.0, "alive/max": 5.0}
    counted |= {"lent": 8.0}
    assert borrowing.since(second) == {"lent": 1.0, "alive/max": 5.0}, "the first has counted the other four"
    counted |= {"lent": 10.0}  # an evaluation, between collections
    third = dict(counted)
    counted |= {"lent": 15.0}
    assert borrowing.since(third)["lent"] == 5.0


async def test_nothing_is_lent_before_somebody_asks_and_all_is_closed_at_the_end(counted: dict[str, float]) -> None:
    async with AsyncExitStack() as closing:
        borrowing = Borrowing("demo", closing)
        assert borrowing.pools == ()
        assert borrowing.engine is borrowing.engine
        assert borrowing.pools == ("a pool",)
        assert "closed" not in counted
    assert counted["closed"] == 1.0
