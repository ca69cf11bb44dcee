"""Checkpoints that are written while training goes on.

What DeepSpeed would write is copied to host memory, which ends the part that ranks wait for; a thread of each rank then
writes its files, and when all have, rank 0 hashes, flushes and renames. Until the rename there is no new checkpoint, so
whatever kills a writer leaves the older one. An error of any rank is an error of the save, and leaves nothing behind.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from agentfly_lib.errors import AgentFlyError, LearnerError
from agentfly_lib.refs import CheckpointRef
from agentfly_lib.training.checkpoint import staging_directory
from agentfly_lib.training.disk import writing

__all__ = ["BackgroundSave", "Files", "captured", "host_copy"]

Files = list[tuple[Path, Any]]
"""What `torch.save` is to write where."""


def host_copy(state: Any) -> Any:
    """A copy in host memory that nothing else holds; tensors that were one stay one."""
    made: dict[tuple[Any, ...], torch.Tensor] = {}

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        place = value.data_ptr() if value.numel() else id(value)
        key = (place, value.dtype, value.shape, value.stride(), value.device)
        if key not in made:
            made[key] = value.detach().to("cpu", copy=True)
        return made[key]

    return tree_map(leaf, state)


@contextmanager
def captured(engine: Any) -> Iterator[Files]:
    """Within the block DeepSpeed's `save_checkpoint` writes no tensors: copies of its files' contents are collected."""
    files: Files = []
    writer = engine.checkpoint_engine
    writer.save = lambda state_dict, path: files.append((Path(path), host_copy(state_dict)))
    try:
        yield files
    finally:
        del writer.save  # its own again


class BackgroundSave:
    """One thread that writes one checkpoint at a time; the ranks' threads meet in a process group of their own."""

    def __init__(self, *, seconds: float) -> None:
        """`seconds`: so long a rank waits for another that writes, or hashes, more."""
        self._ranks = dist.get_world_size()
        limit = timedelta(seconds=seconds)
        self._group: Any = dist.new_group(backend="gloo", timeout=limit) if self._ranks > 1 else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[CheckpointRef | None] | None = None

    def begin(self, path: Path, files: Files, finish: Callable[[], CheckpointRef] | None) -> None:
        """Collective. Writes `files`; when all ranks have written theirs, the rank that has `finish` calls it.

        Raises `LearnerError` if an earlier save was not asked for its result.
        """
        if self._pending is not None:
            raise LearnerError("a checkpoint is still being written; wait for it first")
        self._pending = self._thread.submit(self._run, path, files, finish)

    @property
    def writing(self) -> bool:
        """Something is being written, or its result has not been asked for."""
        return self._pending is not None

    def result(self, *, seconds: float) -> CheckpointRef | None:
        """The checkpoint of this rank's `finish`, once; None without one or if nothing was begun.

        Raises what went wrong on any rank, and `TimeoutError` after `seconds`, when it goes on and can be asked again.
        """
        if self._pending is None:
            return None
        if not wait([self._pending], timeout=seconds).done:
            raise TimeoutError
        pending, self._pending = self._pending, None
        return pending.result()

    def close(self) -> None:
        """Waits for what is being written."""
        self._thread.shutdown(wait=True)

    def _run(self, path: Path, files: Files, finish: Callable[[], CheckpointRef] | None) -> CheckpointRef | None:
        targets = [target for target, _ in files]
        failure = self._told(_attempt(path, lambda: _write(files)))
        if failure is None:
            failure = self._told(_attempt(path, lambda: _check_there(targets)))
        ref: CheckpointRef | None = None
        if failure is None and finish is not None:
            try:
                with writing(path):
                    ref = finish()
            except Exception as error:  # noqa: BLE001 - told to all ranks and raised on each below
                failure = error
        failure = self._told(failure)
        if failure is not None:
            if finish is not None:
                shutil.rmtree(staging_directory(path), ignore_errors=True)
            raise failure
        return ref

    def _told(self, failure: Exception | None) -> Exception | None:
        """Collective: the first rank's failure, on every rank."""
        known = failure if failure is None or isinstance(failure, AgentFlyError) else LearnerError(_named(failure))
        if self._group is None:
            return known
        failures: list[Exception | None] = [None] * self._ranks
        dist.all_gather_object(failures, known, group=self._group)
        return next((each for each in failures if each is not None), None)


def _attempt(path: Path, work: Callable[[], None]) -> Exception | None:
    try:
        with writing(path):
            work()
    except Exception as error:  # noqa: BLE001 - told to all ranks and raised on each
        return error
    return None


def _write(files: Files) -> None:
    while files:
        target, state = files.pop(0)  # given up one by one, so that memory falls while files grow
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, target)


def _check_there(targets: Sequence[Path]) -> None:
    """Whoever took this writer for dead has removed what it had written: that must not be sealed."""
    if gone := [target.name for target in targets if not target.is_file()]:
        raise LearnerError(f"files of a checkpoint were removed while it was written: {', '.join(gone)}")


def _named(error: Exception) -> str:
    return f"a checkpoint could not be written ({type(error).__name__}: {error})"
