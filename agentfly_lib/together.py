"""Several things at the same time, of which the first that fails ends the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from agentfly_lib.errors import described
from agentfly_lib.visible import visible

__all__ = ["both", "first_cause", "together"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
One = TypeVar("One")
Other = TypeVar("Other")


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order. The first error cancels the rest and is raised as it is, not inside a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(item) for item in work]
    except BaseExceptionGroup as group:
        first = first_cause(group)
        raise first from first.__cause__
    return [task.result() for task in running]


async def both(one: Coroutine[Any, Any, One], other: Coroutine[Any, Any, Other]) -> tuple[One, Other]:
    """As `together`, of two results of different kinds."""
    results: list[Any] = await together((one, other))
    return results[0], results[1]


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error that is not a group itself; others of the same instant are logged."""
    first, *others = _leaves(group)
    for other in dict.fromkeys(error for error in others if error is not first):
        logger.warning("another error came at the same time: %s", visible(described(other)))
    return first


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
