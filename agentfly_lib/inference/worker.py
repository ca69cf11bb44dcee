"""What is added to vLLM's worker: loading weights into the running model, in place, from a safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["WeightLoading"]


class WeightLoading:
    """Mixed into the worker's class by vLLM (`worker_extension_cls`); called through `collective_rpc`."""

    if TYPE_CHECKING:

        def get_model(self) -> torch.nn.Module: ...

    def load_safetensors(self, path: str) -> int:
        """Load the file at `path`, with names as in the Hugging Face model, and return how many tensors it holds.

        Each rank of a tensor-parallel engine reads the whole file and keeps its share.

        Raises:
            ValueError: parameters of the model are not in the file.
        """
        from safetensors.torch import load_file

        model, tensors = self.get_model(), load_file(path)
        loaded: set[str] = model.load_weights(tensors.items())  # pyright: ignore[reportCallIssue]
        missing = sorted({_plain(name) for name, _ in model.named_parameters()} - set(map(_plain, loaded)))
        if missing:
            raise ValueError(
                f"{path} leaves {len(missing)} parameters of the model as they were, the first is {missing[0]}"
            )
        return len(tensors)


def _plain(name: str) -> str:
    """A parameter's name without the layer that vLLM wraps around those that adapters may be added to."""
    return name.replace(".base_layer.", ".")
