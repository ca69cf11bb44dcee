"""Training state for another number of ranks: DeepSpeed's universal form, one file per parameter and kind of state.

Between ZeRO 1 and 2 every shape may follow every other, and ZeRO 3 may change its number of ranks; both go through the
universal form. ZeRO 0 in float32 holds the same on every rank, so its number of ranks changes by itself. What remains
(ZeRO 0 or 3 to another stage) has no common form.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist

from agentfly_lib.errors import AgentFlyError, LearnerError
from agentfly_lib.training.checkpoint import CheckpointState, staging_directory
from agentfly_lib.training.disk import free_bytes, require_space, writing

__all__ = ["can_reshape", "needs_universal", "universal_checkpoint"]

_FAMILIES = ({0}, {1, 2}, {3})
"""ZeRO stages whose states have a common form."""


def can_reshape(state: CheckpointState, *, zero_stage: int, dtype: str) -> bool:
    """Whether a checkpoint can be read by any number of ranks of this stage and type."""
    if state.dtype != dtype:
        return False
    if state.zero_stage == 0 and dtype != "float32":
        return False
    return any({state.zero_stage, zero_stage} <= family for family in _FAMILIES)


def needs_universal(state: CheckpointState, *, ranks: int, zero_stage: int) -> bool:
    """Whether it must be converted first; ZeRO 0 needs no conversion."""
    return state.zero_stage != 0 and (state.ranks, state.zero_stage) != (ranks, zero_stage)


@contextlib.contextmanager
def universal_checkpoint(checkpoint: Path, tag: str) -> Iterator[Path]:
    """The universal form of `checkpoint`/deepspeed/`tag`, in a folder beside the checkpoint for the time of the block.

    Collective: rank 0 converts, all may read. Yields the folder that holds `tag`. Raises on every rank `ShardError` if
    it does not fit, `LearnerError` if DeepSpeed cannot convert it.
    """
    folder = staging_directory(checkpoint.with_name(f"{checkpoint.name}.universal"))
    source = checkpoint / "deepspeed" / tag
    try:
        _on_first_rank(lambda: _convert(source, folder / tag))
        yield folder
        dist.barrier()
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _on_first_rank(work: Callable[[], None]) -> None:
    """Does it on rank 0; whatever goes wrong there is raised on all ranks, so that none waits."""
    failure: list[Exception | None] = [None]
    if dist.get_rank() == 0:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again below, on every rank
            failure[0] = error if isinstance(error, AgentFlyError) else LearnerError(_reason(error))
    dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise failure[0]


def _convert(source: Path, target: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    shutil.rmtree(target.parent, ignore_errors=True)
    with writing(target):
        target.mkdir(parents=True)
        size = sum(file.stat().st_size for file in source.iterdir() if file.is_file())
        require_space(target, 2 * size, free_bytes(target))  # slices and what is merged from them exist together
        arguments = argparse.Namespace(
            input_folder=str(source),
            output_folder=str(target),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            ds_to_universal.main(arguments)


def _reason(error: Exception) -> str:
    return (
        f"DeepSpeed cannot convert the checkpoint for another number of ranks or ZeRO stage ({type(error).__name__}: "
        f"{error}); go on with the shape that it was written with"
    )
