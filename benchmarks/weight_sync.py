"""What handing new weights to an engine costs, against copying its bytes: 1 M and 500 M parameters, on a CPU.

A hand-over is what a step does without its canary: the learner's weights are written as one safetensors file in shared
memory, and vLLM loads them in place and forgets what the old ones computed. The bound is the least that two processes
can do: the bytes once into fresh shared memory, and once out of it into memory that is there, by calls of write and
read or through a mapping, whichever is faster.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from agentfly_lib.configs import InferenceConfig
from agentfly_lib.inference.settings import EngineSettings
from benchmarks.engine import vllm_engine
from benchmarks.report import Finding, show

__all__ = ["main"]

REPEATS = 5
SHAPES = {
    "1 M": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 2048},
    "500 M": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 28, "vocab_size": 32_000},
}


def main() -> bool:
    """Runs it; True if the bars are met."""
    findings = []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
            weights = _make(Path(folder), shape)
            size = sum(tensor.nbytes for tensor in weights.values())
            synced = asyncio.run(_sync(Path(folder), Path(shared), weights))
            copied = _copy(Path(shared), weights)
        findings += [
            Finding(what=f"{name} parameters: hand-over / copying the bytes", value=synced / copied, unit="x", bar=2.0),
            Finding(what=f"{name} parameters: hand-over", value=synced, unit="s"),
            Finding(what=f"{name} parameters: copying the bytes", value=copied, unit="s"),
            Finding(what=f"{name} parameters: size", value=size / 2**20, unit="MiB"),
        ]
    return show("weight_sync", findings, notes=f"median of {REPEATS} after a warm-up; float32; one thread")


def _make(folder: Path, shape: dict[str, int]) -> dict[str, torch.Tensor]:
    """A random Qwen2 of this shape, saved in `folder`; its weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True, **shape)  # pyright: ignore[reportArgumentType]
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


async def _sync(folder: Path, shared: Path, weights: dict[str, torch.Tensor]) -> float:
    """Seconds of one hand-over."""
    settings = EngineSettings(
        inference=InferenceConfig(max_sequences=8), model_path=folder, context_length=256, device="cpu"
    )
    engine = vllm_engine(settings)
    from agentfly_lib.training.weights import write_weights

    await engine.start()
    path, seconds = shared / "policy.safetensors", []
    for version in range(1, REPEATS + 2):
        started = time.perf_counter()
        write_weights(path, weights, policy_version=version)
        await engine.load_weights(path, version, None)
        seconds.append(time.perf_counter() - started)
    await engine.close()
    path.unlink()
    return statistics.median(seconds[1:])


def _copy(shared: Path, weights: dict[str, torch.Tensor]) -> float:
    """Seconds of copying the bytes into a new file in shared memory and back out of it, the faster way of two."""
    there = {name: torch.empty_like(tensor) for name, tensor in weights.items()}
    seconds: dict[Callable[..., None], list[float]] = {_by_calls: [], _by_mapping: []}
    for turn in range(REPEATS + 1):
        for way, taken in seconds.items():
            path = shared / f"copy-{turn}"
            started = time.perf_counter()
            with path.open("w+b", buffering=0) as file:
                way(file, weights.values(), there.values())
            taken.append(time.perf_counter() - started)
            path.unlink()
            if not all(torch.equal(there[name], tensor) for name, tensor in weights.items()):
                raise RuntimeError("what was copied is not what was written")
    return min(statistics.median(taken[1:]) for taken in seconds.values())


def _by_calls(file: io.FileIO, source: Iterable[torch.Tensor], target: Iterable[torch.Tensor]) -> None:
    for tensor in source:
        if file.write(_bytes(tensor)) != tensor.nbytes:
            raise RuntimeError(f"a write of {tensor.nbytes} bytes was cut short")
    file.seek(0)
    for tensor in target:
        if file.readinto(_bytes(tensor)) != tensor.nbytes:
            raise RuntimeError(f"a read of {tensor.nbytes} bytes was cut short")


def _by_mapping(file: io.FileIO, source: Iterable[torch.Tensor], target: Iterable[torch.Tensor]) -> None:
    source = list(source)
    size = sum(tensor.nbytes for tensor in source)
    file.truncate(size)
    with mmap.mmap(file.fileno(), size) as memory:
        begin = place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for tensor in source:
            ctypes.memmove(place, tensor.data_ptr(), tensor.nbytes)
            place += tensor.nbytes
        for tensor in target:
            ctypes.memmove(tensor.data_ptr(), begin, tensor.nbytes)
            begin += tensor.nbytes


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.numpy().data.cast("B")


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
