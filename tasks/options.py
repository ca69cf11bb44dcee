"""What all tasks have in common: how often they are tried again, and after which errors they are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prefect.cache_policies import NO_CACHE

from agentfly_lib.errors import AgentFlyError, CanaryError, LedgerError, StageTimeout, UserError

__all__ = ["RETRIED", "retriable", "within"]


def retriable(_task: Any, _run: Any, state: Any) -> bool:
    """What may pass is tried again: engines, ranks, disks, networks.

    A fault that the user must mend, weights that are proven wrong, a ledger that is off, or a mistake in a program come
    out the same the second time.
    """
    return _may_pass(state.data)


def _may_pass(error: Any) -> bool:
    if isinstance(error, BaseExceptionGroup):  # of work done side by side: the worst of it decides
        return all(_may_pass(each) for each in error.exceptions)
    if isinstance(error, UserError | CanaryError | LedgerError):
        return False
    return isinstance(error, AgentFlyError | OSError | TimeoutError)


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """A task's own limit, above the limits of what it calls: a last resort, so that nothing waits for ever.

    Raises `StageTimeout`, after which the task is tried again.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise StageTimeout(f"{what} was not done after {seconds:.0f} s; what it had finished is kept") from error


# Results are files of the run directory, found again by their manifests; Prefect has nothing to cache.
RETRIED: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [1, 10],
    "retry_condition_fn": retriable,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
