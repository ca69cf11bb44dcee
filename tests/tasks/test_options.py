"""Which failures of a stage are tried again."""

from __future__ import annotations

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
from tasks.options import retriable


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
