"""What all tasks have in common: how often they are tried again, and after which errors they are not."""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run

from agentfly_lib.errors import AgentFlyError, CanaryError, LedgerError, UserError

__all__ = ["RETRIED", "is_retry", "retriable"]


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


def is_retry() -> bool:
    """This task run has failed before."""
    return (task_run.run_count or 1) > 1


# Results are files of the run directory, found again by their manifests; Prefect has nothing to cache.
RETRIED: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [1, 10],
    "retry_condition_fn": retriable,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
