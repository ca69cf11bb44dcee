"""A learner that trains step after step, and saves now and then, holds no more memory than at the beginning."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402

pytest.importorskip("deepspeed")

from agentfly_lib.training.checkpoint import prune  # noqa: E402

WARM_UP, STEPS = 10, 20


def tensors() -> int:
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


def mebibytes() -> float:
    return psutil.Process().memory_full_info().uss / 2**20


def test_nothing_grows(learner: Callable[..., Any], factories: ModuleType, tmp_path: Path) -> None:
    sections = {"learner": {"zero_stage": 2}, "algorithm": {"kl": {"coefficient": 0.1}}}
    subject = learner(run={"name": "test", "steps": WARM_UP + STEPS}, **sections)
    groups = factories.step_groups(0)
    held = (0, 0, 0, 0.0)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            held = (tensors(), threading.active_count(), len(os.listdir("/proc/self/fd")), mebibytes())
        subject.update_from(groups, step)
        subject.export_weights(tmp_path / "policy.safetensors", step + 1)
        if step % 5 == 4:
            factories.saved(subject, tmp_path / "checkpoints" / f"{step + 1:06d}")
            prune(tmp_path / "checkpoints", 2)
    assert tensors() <= held[0]
    assert threading.active_count() <= held[1]
    assert len(os.listdir("/proc/self/fd")) <= held[2]
    assert mebibytes() - held[3] < 16, "far less than the batches of these steps"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "policy.safetensors"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
