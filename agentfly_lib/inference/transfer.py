"""Weights from GPU to GPU, the sender's side: what the learner's ranks use of vLLM's weight transfer.

The engines' side is vLLM's own (`vllm.distributed.weight_transfer`, engines `nccl` and `ipc`). Of vLLM's sending side,
which changes from release to release, only the communicator is used; what goes over it is what its receiving side reads
when it is not told to pack: one broadcast for each tensor, in the order of the update's names.

Written against vLLM's classes and never run: there was no GPU. What the two have in common with every transfer (start,
update, finish, the canary) is tested on a CPU through a transfer engine that reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agentfly_lib.errors import LearnerError

if TYPE_CHECKING:
    import torch

__all__ = ["NcclGroup", "TensorMeta", "cuda_handle", "ipc_update", "nccl_meeting", "nccl_update"]


class TensorMeta(NamedTuple):
    """What a receiver must know of a tensor before it comes."""

    name: str
    dtype: str
    """As in `torch.<dtype>`."""
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorMeta:
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


class NcclGroup:
    """Rank 0 of a group with every worker of every engine. Blocks until all have come, minutes at most."""

    def __init__(self, address: str, port: int, world: int) -> None:
        import torch

        if not torch.cuda.is_available():
            raise LearnerError("inference.weight_transfer='nccl' needs a GPU in the learner's process, it has none")
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        group = StatelessProcessGroup.create(host=address, port=port, rank=0, world_size=world)
        self._communicator = PyNcclCommunicator(group, device=torch.cuda.current_device())

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send one tensor to all, which must be receiving; it may be changed after `finish`."""
        import torch

        self._communicator.broadcast(tensor.contiguous(), src=0, stream=torch.cuda.current_stream())

    def finish(self) -> None:
        """Wait until everything is sent."""
        import torch

        torch.cuda.current_stream().synchronize()


def nccl_meeting(address: str, port: int, *, first_rank: int, world: int) -> dict[str, Any]:
    """What an engine is told (`VllmEngine.open_transfer`) to join: its workers are `first_rank`, the next, ..."""
    return {"master_address": address, "master_port": port, "rank_offset": first_rank, "world_size": world}


def nccl_update(metas: Sequence[TensorMeta]) -> dict[str, Any]:
    """What an engine is told of an update (`Transfer`): so many tensors, in this order."""
    return {
        "names": [meta.name for meta in metas],
        "dtype_names": [meta.dtype for meta in metas],
        "shapes": [list(meta.shape) for meta in metas],
    }


def cuda_handle(tensor: torch.Tensor) -> tuple[str, tuple[Any, ...]]:
    """By what another process opens this memory: the GPU's UUID, and what torch rebuilds a tensor from there.

    The tensor must be kept until all have read it.
    """
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    if tensor.device.type != "cuda":
        raise LearnerError(
            f"inference.weight_transfer='ipc' shares GPU memory, but weights are on {tensor.device.type}"
        )
    uuid = str(torch.cuda.get_device_properties(tensor.device).uuid)
    return uuid, reduce_tensor(tensor)[1]


def ipc_update(metas: Sequence[TensorMeta], ranks: Iterable[Sequence[tuple[str, tuple[Any, ...]]]]) -> dict[str, Any]:
    """What an engine is told of an update: of each tensor, where it is on which GPU.

    ranks: for each learner rank the handles of all tensors, in order (`cuda_handle`); each rank has them on its GPU.
    """
    handles: list[Mapping[str, tuple[Any, ...]]] = [dict(copies) for copies in zip(*ranks, strict=True)]
    if len(handles) != len(metas):
        raise LearnerError(f"{len(handles)} tensors are shared, {len(metas)} were announced")
    return nccl_update(metas) | {"ipc_handles": handles}
