"""The session of the flow run that a task belongs to, and its page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from prefect.exceptions import TerminationSignal

from agentfly_lib.configs import RunConfig
from agentfly_lib.configs.hub import names_hub
from agentfly_lib.environment import stay_offline
from agentfly_lib.pipeline import opening
from agentfly_lib.pipeline.session import Session
from tasks.page import Page

__all__ = ["current_page", "current_session", "open_session"]

_current: ContextVar[tuple[Session, Page]] = ContextVar("agentfly_session")


def current_session() -> Session:
    """The session of the flow run that this task belongs to."""
    return _found()[0]


def current_page() -> Page:
    """What Prefect shows of it."""
    return _found()[1]


def _found() -> tuple[Session, Page]:
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("this task belongs to a flow that has opened a session; call it from a flow") from None


@asynccontextmanager
async def open_session(config: RunConfig, *, trains: bool = True) -> AsyncIterator[Session]:
    """A session for the tasks of this flow run; see `agentfly_lib.pipeline.opening`."""
    if not names_hub(config):
        stay_offline()
    async with opening.open_session(config, trains=trains, termination=TerminationSignal) as session:
        token = _current.set((session, Page(config.run.name)))
        try:
            yield session
        finally:
            _current.reset(token)
