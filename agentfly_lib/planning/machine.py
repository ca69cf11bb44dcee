"""What there is to run on: this machine as it is found, or another one that is described."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

import psutil

__all__ = ["Machine"]

_QUERY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
_QUERY_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Processors, memory and GPUs, all of one kind."""

    cpus: int
    memory_bytes: int
    gpus: int = 0
    gpu_memory_bytes: int = 0
    """Of each; 0 if it is not known."""

    @classmethod
    def here(cls, *, gpus: int | None = None, gpu_memory_gib: float | None = None) -> Machine:
        """This machine; what is given stands in place of what would be found."""
        found = _gpu_memories() if gpus is None or gpu_memory_gib is None else []
        size = int(gpu_memory_gib * 2**30) if gpu_memory_gib is not None else min(found, default=0)
        return cls(
            cpus=os.cpu_count() or 1,
            memory_bytes=psutil.virtual_memory().total,
            gpus=len(found) if gpus is None else gpus,
            gpu_memory_bytes=size,
        )


def _gpu_memories() -> list[int]:
    """Bytes of each GPU that the driver lists; none without a driver."""
    try:
        listed = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) * 2**20 for line in listed.split() if line.isdigit()]
