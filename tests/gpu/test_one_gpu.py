"""For a machine with one GPU, minutes in all: `python -m pytest -m gpu tests/gpu -s`. Skipped where there is none.

Engine and learner take turns on the card: the engine sleeps while the learner computes. What is checked is what can
differ there: kernels, dtypes, memory, collectives, and the ways that weights take. NCCL wants a second card.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentfly_lib.cluster import gpu_count

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_count(), reason="no GPU here")]

SHARED = (
    "inference.device=cuda",
    "learner.device=cuda",
    "inference.gpu_memory_fraction=0.3",
)


def metrics_of(run: Path, step: int) -> dict[str, float]:
    return json.loads((run / "steps" / f"{step:06d}" / "metrics.json").read_text())


def precise(dtype: str, stage: int, *more: str) -> list[str]:
    settings = [f"inference.dtype={dtype}", f"learner.dtype={dtype}", f"learner.zero_stage={stage}"]
    return [*settings, "inference.canary_tolerance=0.1", *more]


@pytest.mark.parametrize(
    ("changes", "agreement"),
    [
        pytest.param(precise("float32", 0), 1e-3, id="float32"),
        pytest.param(precise("bfloat16", 2, "inference.weight_transfer=ipc"), 0.3, id="bfloat16-zero2-ipc"),
        pytest.param(
            precise("bfloat16", 0, "learner.lora.rank=8", "inference.lora_sync=adapter"), 0.3, id="bfloat16-adapter"
        ),
        pytest.param(
            precise("bfloat16", 0, "inference.placement=split", "inference.weight_transfer=nccl"),
            0.3,
            id="bfloat16-nccl",
            marks=pytest.mark.skipif(gpu_count() < 2, reason="NCCL wants a GPU for each side, there are not two"),
        ),
    ],
)
def test_the_whole_flow(tmp_path, changes, agreement):
    import subprocess
    import sys

    settings = [*SHARED, f"run.root={tmp_path}", *changes]
    command = [sys.executable, "-m", "agentfly_lib", "train", "recipes/ci.toml"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for step in range(3):
        metrics = metrics_of(tmp_path / "ci", step)
        print(
            f"{' '.join(changes)} step {step}: {metrics['time/step/seconds']:.2f} s, "
            f"mismatch {metrics['train/mismatch/max']:.2g}, reward {metrics['train/reward/mean']:.3f}"
        )
        assert metrics["train/mismatch/max"] < agreement
        assert metrics["train/skipped_updates/count"] == 0


@pytest.mark.parametrize(
    "options",
    [
        ["learner.zero_stage=2", "learner.offload.optimizer=cpu"],
        ["learner.zero_stage=3", "learner.offload.optimizer=cpu", "learner.offload.parameters=cpu"],
        ["learner.lora.rank=8", "learner.lora.quantize=nf4"],
        ["learner.liger=true"],
    ],
    ids=["offload", "offload-parameters", "qlora", "liger"],
)
def test_an_update_with_options_that_are_for_gpus(options, tmp_path):
    """Two updates on made-up rollouts: finite, and the exported weights give the learner's own log-probs."""
    import subprocess
    import sys

    for package, option in (("bitsandbytes", "quantize"), ("liger_kernel", "liger")):
        if any(option in each for each in options):
            pytest.importorskip(package)
    program = Path(__file__).with_name("learner_program.py")
    command = [sys.executable, str(program), str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{', '.join(options)}: {found}")
    assert found["grad_norm"] > 0
    assert found["skipped"] == 0
    assert found["difference"] < 0.1


@pytest.mark.parametrize("window", [None, 16])
def test_flash_attention_over_documents_equals_the_padded_one(window):
    import torch

    from agentfly_lib.training.attention import Documents, _flash, _padded

    torch.manual_seed(0)
    edges = np.array([0, 33, 34, 200, 456], np.int32)
    documents = Documents.of(edges, 456, torch.device("cuda"))
    query = torch.randn(456, 8, 64, device="cuda", dtype=torch.bfloat16)
    key, value = (torch.randn(456, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flash = _flash(query, key, value, documents, scaling=None, window=window)
    padded = _padded(query.float(), key.float(), value.float(), documents, scaling=None, window=window)
    difference = float((flash.float() - padded).abs().max())
    print(f"window {window}: flash differs from float32 by {difference:.2g}")
    assert difference < 0.03
