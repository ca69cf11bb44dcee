"""A run as an asynchronous stream of events.

`RunStarted` comes first and `RunEnded` last; between them stand the events of the chains (`rollout.events`), mixed
where several chains run. What was opened is closed before the stream ends, also when the run breaks: its error is told,
everything is closed, and then it is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from agentfly_lib.agents.result import RunResult
from agentfly_lib.rollout.events import ChainEvent, ErrorRaised

__all__ = ["AgentEvent", "RunEnded", "RunStarted", "stream_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run begins."""

    type: ClassVar[str] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run is over, and its trajectories are scored."""

    type: ClassVar[str] = "run_ended"
    result: RunResult | None
    """None if the run could not go on."""


AgentEvent = RunStarted | RunEnded | ChainEvent


async def stream_events(
    start: Callable[[Callable[[ChainEvent], None]], Awaitable[RunResult]],
) -> AsyncGenerator[AgentEvent, None]:
    """The events of `start(tell)`. Closing the stream cancels the run and waits for it to be gone."""
    queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

    async def work() -> RunResult:
        try:
            return await start(queue.put_nowait)
        finally:
            queue.put_nowait(None)

    yield RunStarted()
    running = asyncio.ensure_future(work())
    try:
        while (event := await queue.get()) is not None:
            yield event
        error = (await asyncio.wait([running])) and running.exception()
        if error is not None:
            yield ErrorRaised(trajectory_id=None, message=f"{type(error).__name__}: {error}")
        yield RunEnded(result=None if error is not None else running.result())
        if error is not None:
            raise error
    finally:
        running.cancel()
        await asyncio.wait([running])
