"""Opens what a flow run holds while it lasts, and closes it on success, error and cancellation. Nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentfly_lib.configs import RunConfig, config_toml
from agentfly_lib.leash import leash
from agentfly_lib.pipeline.live import published
from agentfly_lib.pipeline.session import Session
from agentfly_lib.pipeline.stopping import raised_by, stopped_by_sigterm
from agentfly_lib.preflight import check_same_config
from agentfly_lib.store.atomic import write_bytes
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.layout_version import check_layout, write_layout
from agentfly_lib.store.lock import RunLock
from agentfly_lib.tracking.parameters import run_parameters
from agentfly_lib.tracking.provenance import provenance_tags
from agentfly_lib.tracking.tracker import RunStatus, Tracker
from agentfly_lib.viewer.live import LiveDisplay

__all__ = ["open_session"]

_KILLED_DRAIN_SECONDS = 10.0
"""Who ends a flow does not wait for long; what is left for MLflow is sent at the next start."""


@asynccontextmanager
async def open_session(config: RunConfig, *, trains: bool, termination: type[BaseException]) -> AsyncIterator[Session]:
    """Locks the run directory, refuses another config, opens tracker and display. SIGTERM ends it as Ctrl-C does.

    Args:
        trains: whether there is a learner; see `Session.trains`.
        termination: what the handler of SIGTERM raises that whoever runs the flow has set.

    Raises:
        RunLockedError: a living process uses the directory.
        ConfigError: the directory belongs to a run with another config; names the keys that differ.
    """
    directory = RunDirectory(config.run.directory)
    with leash(), RunLock(directory):
        if not directory.config_file.exists():
            write_layout(directory)  # first: a directory that has a config has said what it is
            write_bytes(directory.config_file, config_toml(config).encode())
        check_layout(directory)
        check_same_config(config)
        tracker = Tracker.open(directory.path, config.tracking, run_name=config.run.name, root=config.run.root)
        status: RunStatus = "FAILED"
        try:
            tracker.log_params(run_parameters(config))
            tracker.log_config(config_toml(config))
            tracker.set_tags(await asyncio.to_thread(provenance_tags))
            session = Session(
                config=config,
                directory=directory,
                tracker=tracker,
                display=LiveDisplay.current(),
                trains=trains,
            )
            async with published(session, termination), session.closing:
                if trains:
                    bar = session.closing.enter_context(session.display.stage("steps", total=config.run.steps))
                    bar.update(completed=session.schedule.first_open_step())
                    session.steps_bar = bar
                try:
                    with stopped_by_sigterm():
                        try:
                            yield session
                            await session.background.finish()
                        finally:  # before the actors that it may be about to start or to ask are ended
                            session.background.cancel()
                finally:
                    await _finish_checkpoint(session)
            status = "FINISHED"
        except (KeyboardInterrupt, asyncio.CancelledError):
            status = "KILLED"
            raise
        except BaseException as error:
            if raised_by(error, termination):  # somewhere below; it ends as a cancelled flow does
                status = "KILLED"
                raise asyncio.CancelledError("SIGTERM") from error
            raise
        finally:
            patience = config.tracking.drain_seconds
            if status == "KILLED":
                patience = min(patience, _KILLED_DRAIN_SECONDS)
            await asyncio.to_thread(tracker.finish, status, timeout=patience)


async def _finish_checkpoint(session: Session) -> None:
    """However the session ends, and before the ranks do."""
    if session.learning.saving is not None:
        from agentfly_lib.pipeline.saving import finish_early  # needs Ray, which preparing and scoring do without

        await finish_early(session.learning.saving, session.config.learner)
