"""The share of a demo step that is ours: neither generation, tools, rewards nor the learner's computation.

It runs the recipe `demo` for a few steps with everything on (shards, manifests, Prefect, MLflow, weight sync with
canary) and reads what the run itself measured.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import Finding, show

__all__ = ["RECIPE", "STEPS", "WARM_UP", "demo_steps", "main"]

RECIPE = Path("recipes/demo.toml")
STEPS = 12
WARM_UP = 2


def main() -> bool:
    """Runs it; True if the bar is met."""
    steps = demo_steps()[WARM_UP:]
    findings = [
        Finding(what=f"{part}, median of a step", value=_median(steps, f"time/{part}/seconds"), unit="s")
        for part in ("step", "generation", "tools", "reward", "forward_backward", "overhead", "sync")
    ]
    whole = sum(step["time/step/seconds"] for step in steps)
    ours = sum(step["time/overhead/seconds"] for step in steps)
    findings.append(Finding(what="overhead / step", value=ours / whole, unit="ratio", bar=0.10))
    findings.append(Finding(what="sampled tokens", value=_median(steps, "rollout/tokens_per_second/mean"), unit="1/s"))
    return show("overhead", findings)


def demo_steps() -> list[dict[str, float]]:
    """The metrics of each step of a run of the recipe, as the run has recorded them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "agentfly_lib", "train", str(RECIPE), "--quiet"]
        for override in (f"run.root={folder}", f"run.steps={STEPS}", "evaluation.every_steps=0"):
            command += ["--set", override]
        subprocess.run(command, check=True, timeout=900, stdout=subprocess.DEVNULL)
        files = sorted((Path(folder) / "demo" / "steps").glob("*/metrics.json"))
        return [json.loads(file.read_text()) for file in files]


def _median(steps: list[dict[str, float]], name: str) -> float:
    return statistics.median(step[name] for step in steps)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
