"""Memory over many small steps: does any process of a run grow, and is anything left when it has ended?

`python -m benchmarks.endurance [STEPS]` trains the recipe `ci` for 200 steps and looks at the memory of each of its
processes every two seconds. Growth is told after a warm-up of a fifth of the steps, as what a straight line through the
rest gains from its beginning to its end; the caches that fill up later are in it. What the driver loads after the last
step, to evaluate and to write the report, is no growth from step to step: the line ends before it, and "at the end" has
it. Not among the benchmarks that run by themselves: it takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from agentfly_lib.pipeline.exchange import exchange_path
from agentfly_lib.store.layout import RunDirectory
from benchmarks.report import Finding, show

__all__ = ["main", "processes_of"]

WARM_UP = 0.2
EVERY_SECONDS = 2.0
LIMIT_SECONDS = 3600.0
GROWTH_MIB = 32.0
"""Bar for one process over the whole run: far less than a batch kept from each step would be."""


@dataclass(slots=True)
class Memory:
    """Of one process: what it is, and (finished steps of the run, MiB of its own) as time goes on."""

    what: str
    seen: list[tuple[int, float]] = field(default_factory=list)

    def growth(self, steps: int) -> float | None:
        """MiB that it gains from the warm-up to the last step; None if it was not there for half of that time."""
        after = np.array([each for each in self.seen if WARM_UP * steps <= each[0] < steps])
        if len(after) < 10 or after[-1, 0] - after[0, 0] < (1 - WARM_UP) * steps / 2:
            return None
        slope = np.polyfit(after[:, 0], after[:, 1], 1)[0]
        return float(slope * (after[-1, 0] - after[0, 0]))


def main(steps: int = 200) -> bool:
    """Runs it; True if nothing grows and nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        run = RunDirectory(root / "endurance")
        watched, seconds = _watch(root, run, steps)
        left = processes_of(root)
        files = [path for path in root.rglob("*") if path.name.endswith(".tmp")]
        exchanged = exchange_path(run).exists()
    findings = [
        Finding(what=f"{each.what}: growth", value=growth, unit="MiB", bar=GROWTH_MIB)
        for each in watched
        if (growth := each.growth(steps)) is not None
    ]
    findings += [
        Finding(what=f"{each.what}: at the end", value=each.seen[-1][1], unit="MiB")
        for each in watched
        if each.growth(steps) is not None
    ]
    findings += [
        Finding(what="processes left", value=len(left), unit="", bar=0),
        Finding(what="temporary files left", value=len(files), unit="", bar=0),
        Finding(what="folders in shared memory left", value=float(exchanged), unit="", bar=0),
        Finding(what="wall time", value=seconds, unit="s"),
    ]
    return show("endurance", findings, notes=f"{steps} steps of recipes/ci.toml, checkpoints every 10")


def _watch(root: Path, run: RunDirectory, steps: int) -> tuple[list[Memory], float]:
    command = [sys.executable, "-m", "agentfly_lib", "train", "recipes/ci.toml", "--quiet"]
    for override in (f"run.root={root}", "run.name=endurance", f"run.steps={steps}", "checkpoint.every_steps=10"):
        command += ["--set", override]
    command += ["--set", "evaluation.every_steps=0"]
    watched: dict[tuple[int, float], Memory] = {}
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        driver = psutil.Process(process.pid)
        while process.poll() is None:
            if time.monotonic() - started > LIMIT_SECONDS:
                process.kill()
                raise RuntimeError(f"{steps} steps took longer than {LIMIT_SECONDS:.0f} s")
            done = len(list(run.path.glob("steps/*/metrics.json")))
            for each in (driver, *processes_of(root)):
                try:
                    memory = watched.setdefault((each.pid, each.create_time()), Memory(each.name()))
                    memory.what = _title(each, driver)  # a Ray worker gets its own a moment after its start
                    memory.seen.append((done, each.memory_full_info().uss / 2**20))
                except psutil.Error:
                    continue
            time.sleep(EVERY_SECONDS)
        if process.returncode:
            raise RuntimeError(f"the run ended with exit status {process.returncode}")
    return _numbered(list(watched.values())), time.monotonic() - started


def processes_of(root: Path) -> list[psutil.Process]:
    """Those that a run below `root` has started; the run's own process, the driver, is not among them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT_HOME", "").startswith(str(root.resolve())):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _title(process: psutil.Process, driver: psutil.Process) -> str:
    if process == driver:
        return "driver"
    line = " ".join(process.cmdline())
    for piece, title in (
        ("LearnerActor", "learner rank"),
        ("EngineServer", "engine"),
        ("gcs_server", "Ray: control"),
        ("raylet/raylet", "Ray: raylet"),
        ("ray::", "Ray: other worker"),
        ("ray/", "Ray: service"),
        ("prefect", "Prefect API"),
    ):
        if piece in line:
            return title
    return process.name()


def _numbered(watched: list[Memory]) -> list[Memory]:
    """Titles that several have get a number."""
    count: dict[str, int] = defaultdict(int)
    made = []
    for each in watched:
        count[each.what] += 1
        suffix = f" {count[each.what]}" if count[each.what] > 1 else ""
        made.append(Memory(f"{each.what}{suffix}", each.seen))
    return made


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:2])) else 1)
