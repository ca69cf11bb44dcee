"""What a learner process is made for, and in: known to its caller without loading torch."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from agentfly_lib.configs import RunConfig

__all__ = ["learner_fingerprint", "process_environment"]


def learner_fingerprint(config: RunConfig, model_path: Path) -> str:
    """Hash over everything that decides what an update computes."""
    parts = [
        config.algorithm.model_dump_json(),
        config.optim.model_dump_json(),
        config.learner.model_dump_json(),
        config.rollout.sampling.model_dump_json(),
        str(config.run.steps),
        str(model_path),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def process_environment(*, device: str, threads: int) -> dict[str, str]:
    """Environment variables that a learner process needs before torch and DeepSpeed are imported."""
    environment = {
        # A private folder: an interrupted build of another process leaves a lock there on which everyone would wait.
        "TORCH_EXTENSIONS_DIR": str(Path(tempfile.gettempdir()) / f"agentfly-torch-extensions-{os.getuid()}"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if device == "cpu":
        environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    return environment
