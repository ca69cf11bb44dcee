"""Train again on the stored rollouts of a run, and compare what comes out."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from agentfly_lib.pipeline import limits
from agentfly_lib.pipeline import replay as stored
from agentfly_lib.pipeline.limits import within
from agentfly_lib.pipeline.replay import ReplayReport
from agentfly_lib.refs import ModelRef
from tasks.options import RETRIED
from tasks.session import current_session

__all__ = ["replay"]


@task(name="replay", **RETRIED)
async def replay(_: ModelRef, first: int, last: int, output: Path | None) -> ReplayReport:
    """Makes the updates of the steps `first` to `last` again, from the checkpoint of version `first`."""
    session = current_session()
    async with within(limits.replay(session.config, last - first + 1), "the replay"):
        return await stored.replay(session, first, last, output)
