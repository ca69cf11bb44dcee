"""Weights on their way to engines without a file: a rank's side of `inference.weight_transfer` `nccl` and `ipc`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from agentfly_lib.errors import LearnerError
from agentfly_lib.inference.transfer import NcclGroup, TensorMeta, cuda_handle
from agentfly_lib.training.engine import give_back_cache
from agentfly_lib.training.weights import whole_weights

__all__ = ["WeightSender"]


class WeightSender:
    """One rank's. `describe`, `broadcast` and `share` are collective: every rank calls them, in the same order."""

    def __init__(self, model: PreTrainedModel, *, zero_stage: int) -> None:
        self._model = model
        self._zero_stage = zero_stage
        self._group: NcclGroup | None = None
        self._shared: list[torch.Tensor] = []

    def describe(self) -> list[TensorMeta]:
        """Every weight, as it will come."""
        return [TensorMeta.of(name, tensor) for name, tensor in self._weights()]

    def open(self, address: str, port: int, world: int) -> None:
        """Rank 0 meets the engines; the others have nothing to do."""
        if dist.get_rank() == 0:
            self._group = NcclGroup(address, port, world)

    def broadcast(self) -> None:
        """Send every weight from rank 0, while the engines receive. Raises `LearnerError` if none was opened."""
        first = dist.get_rank() == 0
        if first and self._group is None:
            raise LearnerError("the learner has not met the engines: open the transfer first")
        for _, tensor in self._weights():
            if self._group is not None:
                self._group.broadcast(tensor)
                self._group.finish()  # under ZeRO 3 the next weight takes this one's place
        dist.barrier()

    def share(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Handles of every weight on this rank's GPU, which stay good until `release`."""
        self.release()
        own = {parameter.data_ptr() for parameter in self._model.parameters()}
        for _, tensor in self._weights():
            lives_on = self._zero_stage != 3 and tensor.data_ptr() in own
            self._shared.append(tensor if lives_on else tensor.clone())
        return [cuda_handle(tensor) for tensor in self._shared]

    def release(self) -> None:
        """The engines have read what was shared."""
        self._shared.clear()
        give_back_cache(self._model.device)

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return whole_weights(self._model, zero_stage=self._zero_stage)
