"""Which failures of a stage are tried again, and that no stage waits for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from agentfly_lib.errors import (
    AgentFlyError,
    CanaryError,
    ConfigError,
    DataError,
    EngineError,
    LearnerError,
    LedgerError,
    ShardError,
    StageTimeout,
)
from tasks.options import retriable, within


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (EngineError("died"), True),
        (LearnerError("rank died"), True),
        (ShardError("disk full"), True),
        (StageTimeout("too long"), True),
        (OSError("disk"), True),
        (AgentFlyError("x"), True),
        (ConfigError("typo"), False),
        (DataError("row 3"), False),
        (CanaryError("other weights"), False),
        (LedgerError("off"), False),
        (TypeError("a mistake in a program"), False),
        (ExceptionGroup("both", [EngineError("died"), LearnerError("died")]), True),
        (ExceptionGroup("both", [EngineError("died"), ConfigError("typo")]), False),
    ],
)
def test_what_may_pass_is_tried_again_and_nothing_else(error: Exception, again: bool) -> None:
    assert retriable(None, None, SimpleNamespace(data=error)) is again


async def test_a_stage_ends_at_its_limit() -> None:
    with pytest.raises(StageTimeout, match=r"collect 3 was not done after 0 s; what it had finished is kept"):
        async with within(0.01, "collect 3"):
            await asyncio.Event().wait()


async def test_a_stage_within_its_limit_keeps_its_own_errors() -> None:
    with pytest.raises(EngineError, match="died"):
        async with within(10, "collect 3"):
            raise EngineError("died")
