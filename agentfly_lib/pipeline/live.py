"""Publishes what the flow is doing, about once a second, for `agentfly top`.

A look costs milliseconds of the driver: bars and pools are read from memory, engines are asked in a thread, processes
of the learner are found by this run's mark every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import socket
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psutil

from agentfly_lib.errors import EngineError
from agentfly_lib.inference.actor import engine_names, engine_status
from agentfly_lib.leash import marked_processes
from agentfly_lib.pipeline.session import Session
from agentfly_lib.pipeline.stopping import raised_by
from agentfly_lib.ray_calls import ray_call
from agentfly_lib.refs import EngineRef
from agentfly_lib.resources.pool import Pool
from agentfly_lib.tracking.tracker import RunStatus
from agentfly_lib.viewer.live import SHOWN_METRICS
from agentfly_lib.viewer.state import EngineView, PoolView, RankView, RunState, write_state

__all__ = ["gpu_memory", "published"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_PROCESSES_SECONDS = 5.0
_KEPT_WARNINGS = 5
_KEPT_ROWS = 5
_MIB = 2**20


class _Warnings(logging.Handler):
    """The newest warnings of the library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: deque[str] = deque(maxlen=_KEPT_WARNINGS)

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.getMessage()[:300]}")


@dataclass
class _Observer:
    """Looks at a session."""

    session: Session
    began: float = field(default_factory=time.time)
    warnings: _Warnings = field(default_factory=_Warnings)
    failed: bool = False
    """Something could not be published, which was said once."""
    _tokens: dict[str, tuple[float, int]] = field(default_factory=dict)
    _asked: asyncio.Task[tuple[EngineView, ...]] | None = None
    _answers: tuple[EngineView, ...] = ()
    _answered: float = 0.0
    _ranks: tuple[RankView, ...] = ()
    _ranks_seen: float = float("-inf")

    async def look(self, status: RunStatus | None) -> RunState:
        """One look; `status` if the flow has ended."""
        session = self.session
        processes = session.cluster.running and status is None
        done = next((stage.completed for stage in session.display.stages if stage.name == "steps"), None)
        if done is None and session.trains:
            done = session.schedule.first_open_step()
        return RunState(
            written=time.time(),
            began=self.began,
            pid=os.getpid(),
            host=socket.gethostname(),
            run=session.config.run.name,
            status=status or "RUNNING",
            steps_done=None if done is None else int(done),
            steps=session.config.run.steps if session.trains else None,
            generating=session.times.activity.generations,
            using_tools=session.times.activity.tool_calls,
            stages=session.display.stages,
            engines=await self._engines() if processes else (),
            pools=tuple(_pool_view(pool) for pool in session.borrowing.pools),
            ranks=await asyncio.to_thread(self._learner) if processes else (),
            rows=tuple((label, _shown(metrics)) for label, metrics in session.display.rows[-_KEPT_ROWS:]),
            warnings=tuple(self.warnings.kept),
        )

    async def _engines(self) -> tuple[EngineView, ...]:
        """What the engines say, or said last if they take their time: one question is under way at most."""
        if self._asked is None:
            self._asked = asyncio.ensure_future(ray_call(self._ask_engines))
        await asyncio.wait({self._asked}, timeout=_ANSWER_SECONDS)
        if self._asked.done():
            asked, self._asked = self._asked, None
            self._answers, self._answered = asked.result(), time.monotonic()
            return self._answers
        silent = f"no answer for {time.monotonic() - self._answered:.0f} s"
        return tuple(view.model_copy(update={"error": silent}) for view in self._answers)

    def _ask_engines(self) -> tuple[EngineView, ...]:
        views = []
        for name in engine_names(self.session.config):
            try:
                (status,) = engine_status(EngineRef(names=(name,), namespace=self.session.namespace, policy_version=0))
            except EngineError as error:
                if name not in self._tokens:  # it starts, or this flow has none
                    continue
                views.append(EngineView(name=name, error=str(error)[:200]))
                continue
            now, before = time.monotonic(), self._tokens.get(name)
            self._tokens[name] = (now, status.sampled_tokens)
            rate = None
            if before is not None and status.sampled_tokens >= before[1]:  # a new engine begins to count anew
                rate = (status.sampled_tokens - before[1]) / max(now - before[0], 1e-3)
            views.append(
                EngineView(
                    name=name,
                    policy_version=status.policy_version,
                    in_flight=status.in_flight,
                    tokens_per_second=rate,
                    rss_mib=status.rss_mib,
                )
            )
        return tuple(views)

    def _learner(self) -> tuple[RankView, ...]:
        if time.monotonic() - self._ranks_seen >= _PROCESSES_SECONDS:
            self._ranks, self._ranks_seen = tuple(_rank_views()), time.monotonic()
        return self._ranks


@asynccontextmanager
async def published(session: Session, termination: type[BaseException]) -> AsyncIterator[None]:
    """Publishes the session's state until the block ends, and then how it ended: `termination` is a kill."""
    observer, library = _Observer(session), logging.getLogger("agentfly_lib")
    library.addHandler(observer.warnings)
    publisher = asyncio.get_running_loop().create_task(_keep_publishing(observer))
    status: RunStatus = "FAILED"
    try:
        yield
        status = "FINISHED"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError) or raised_by(error, termination):
            status = "KILLED"
        raise
    finally:
        publisher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publisher
        library.removeHandler(observer.warnings)
        await _publish(observer, status)


async def _keep_publishing(observer: _Observer) -> None:
    while True:
        await _publish(observer, None)
        await asyncio.sleep(_LOOK_SECONDS)


async def _publish(observer: _Observer, status: RunStatus | None) -> None:
    try:
        state = await observer.look(status)
        await asyncio.to_thread(write_state, observer.session.directory.path, state)
    except Exception as error:  # noqa: BLE001  whatever it is, it must neither end a run nor hide what ended it
        if not observer.failed:
            logger.warning(
                "the run's state cannot be published for `agentfly top`: %s: %s", type(error).__name__, error
            )
        observer.failed = True


def gpu_memory() -> dict[int, float]:
    """MiB of GPU memory by process, as the driver tells; empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    used: dict[int, float] = {}
    for pid, mib in re.findall(r"^\s*(\d+)\s*,\s*(\d+)\s*$", told, re.MULTILINE):
        used[int(pid)] = used.get(int(pid), 0.0) + float(mib)
    return used


def _rank_views() -> Iterator[RankView]:
    """Learner processes of this run on this machine. Ray puts the class, and the method that runs, into their title."""
    from agentfly_lib.training.ranks import LearnerActor  # needs Ray, which is running

    actor = re.compile(rf"ray::{LearnerActor.__name__}(?:\.(\w+))?")
    gpu: dict[int, float] | None = None
    for pid in sorted(marked_processes()):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            title = " ".join(process.cmdline())
            if found := actor.match(title):
                gpu = gpu_memory() if gpu is None else gpu
                yield RankView(
                    pid=pid,
                    doing=found[1] or "",
                    rss_mib=process.memory_info().rss / _MIB,
                    gpu_mib=gpu.get(pid),
                )


def _pool_view(pool: Pool) -> PoolView:
    return PoolView(
        name=pool.name,
        alive=pool.alive,
        in_use=pool.in_use,
        waiting=pool.waiting,
        made=pool.counts.made,
        died=pool.counts.died,
        failed=pool.counts.failed,
    )


def _shown(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name in SHOWN_METRICS}
