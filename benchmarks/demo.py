"""The demo for three seeds: does held-out reward rise, how long does it take, how much memory.

Bars: sampled held-out reward rises by at least 0.25 with intervals that do not overlap, within 6 minutes and 10 GiB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from agentfly_lib.evaluation.report import EvaluationReport, read_report
from agentfly_lib.store.layout import RunDirectory
from benchmarks.endurance import processes_of
from benchmarks.report import Finding, show

__all__ = ["main"]

SEEDS = (0, 1, 2)
STEPS = 30


def main() -> bool:
    """Runs it; True if every bar is met."""
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            seconds, peak = _run(Path(folder), seed)
            run = RunDirectory(Path(folder) / f"demo-{seed}")
            before, after = (_sampled(run, version) for version in (0, STEPS))
            gain, gap = after.reward.mean - before.reward.mean, after.reward.low - before.reward.high
            findings += [
                Finding(what=f"seed {seed}: held-out reward before", value=before.reward.mean, unit="reward"),
                Finding(what=f"seed {seed}: held-out reward after", value=after.reward.mean, unit="reward"),
                Finding(what=f"seed {seed}: 0.25 - gain", value=0.25 - gain, unit="reward", bar=0.0),
                Finding(what=f"seed {seed}: overlap of the intervals", value=-gap, unit="reward", bar=0.0),
                Finding(what=f"seed {seed}: wall time, start included", value=seconds, unit="s", bar=360.0),
                Finding(what=f"seed {seed}: memory of all processes", value=peak, unit="GiB", bar=10.0),
            ]
    return show("demo", findings)


def _run(root: Path, seed: int) -> tuple[float, float]:
    """Wall seconds and peak memory, GiB. The small model is made before the clock starts."""
    subprocess.run(
        [sys.executable, "-m", "agentfly_lib", "model", "tiny", "--seed", str(seed), "--print-path"],
        check=True,
        timeout=900,
        stdout=subprocess.DEVNULL,
    )
    command = [sys.executable, "-m", "agentfly_lib", "train", "recipes/demo.toml", "--quiet"]
    for override in (f"run.root={root}", f"run.name=demo-{seed}", f"run.seed={seed}", f"model.seed={seed}"):
        command += ["--set", override]
    started, peak = time.monotonic(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        driver = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _memory([driver, *processes_of(root)]))
            time.sleep(1)
        if process.returncode:
            raise RuntimeError(f"the demo ended with exit status {process.returncode}")
    if not peak:
        raise RuntimeError("no memory of the demo's processes could be read")
    return time.monotonic() - started, peak / 2**30


def _memory(processes: Iterable[psutil.Process]) -> int:
    """Bytes, shared ones counted once."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def _sampled(run: RunDirectory, version: int) -> EvaluationReport:
    report = read_report(run.evaluation(version, "sampled").report_file)
    if report.reward is None:
        raise RuntimeError(f"version {version} has no reward")
    return report


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
