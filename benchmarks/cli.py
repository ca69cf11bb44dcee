"""How soon the command line answers, and how soon the page of a run of 100,000 trajectories is there.

Each command is a process of its own, as a person starts it; the best and the median of several are told. The run is
made first: 200 steps of 500 trajectories, in the parts that a collection leaves, with scores and with what the updates
saw. Opening it is everything from the command to the first page's last byte; the same page again, a filter over all
rows, and one group with its tokens' ratios follow. The memory is the server's largest.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from agentfly_lib.configs import config_toml, load_config
from agentfly_lib.store import RolloutStore, Score, ScoreStore, read_rollout_manifest
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.learned import write_learned
from agentfly_lib.types import (
    Outcome,
    Problem,
    Segment,
    StopReason,
    TrainingSample,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from benchmarks.report import Finding, show

__all__ = ["main", "make_run"]

REPEATS = 5
STEPS, GROUPS, CHAINS, TOKENS = 200, 50, 10, 60
_ANSWERS_SECONDS = 120.0


def main() -> bool:
    """Runs it; True if every bar is met."""
    agentfly = [sys.executable, "-m", "agentfly_lib"]
    findings: list[Finding] = []
    for what, command, bar in (
        ("agentfly --help", [*agentfly, "--help"], 0.5),
        ("agentfly config check", [*agentfly, "config", "check", "recipes/demo.toml"], 1.0),
    ):
        findings += _times(what, lambda command=command: _seconds(command), bar)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "large")
        make_run(run, steps=STEPS, groups=GROUPS, chains=CHAINS, tokens=TOKENS)
        opened, again, filtered, shown, memory = zip(*(_open(run) for _ in range(REPEATS)), strict=True)
    what = f"opening a run of {STEPS * GROUPS * CHAINS:,} trajectories"
    findings += _told(what, opened, 2.0)
    findings += _told("the same page again", again, None)
    findings += _told("a filter over all of them", filtered, None)
    findings += _told("one group with its tokens", shown, None)
    findings.append(Finding(what="memory of the server", value=max(memory) / 2**20, unit="MiB"))
    return show("cli", findings, notes=f"median and best of {REPEATS}; the files are in the page cache")


def make_run(run: RunDirectory, *, steps: int, groups: int, chains: int, tokens: int) -> None:
    """A run of some steps with scores and learned tokens: half of every trajectory is sampled."""
    run.path.mkdir(parents=True)
    run.config_file.write_text(config_toml(load_config(Path("recipes/demo.toml"), [f"run.steps={steps}"])))
    rng = np.random.default_rng(0)
    for step in range(steps):
        made = [_group(rng, f"{step:06d}-{index:05d}", chains, tokens, step) for index in range(groups)]
        directory = run.step(step)
        store = RolloutStore.open(
            directory, step=step, policy_version=step, group_ids=[group.id for group in made], chains=chains
        )
        for first in range(0, groups, 25):
            store.append(made[first : first + 25])
        store.finish()
        rollouts, scores = read_rollout_manifest(directory), ScoreStore(directory, "benchmark")
        for part in rollouts.parts:
            inside = [each for group in made if group.id in part.groups for each in group.trajectories]
            rewards = rng.integers(0, 2, len(inside)).astype(float)
            scores.append(
                part.name,
                [
                    Score(trajectory_id=each.id, outcome=Outcome.SCORED, reward=reward)
                    for each, reward in zip(inside, rewards, strict=True)
                ],
            )
        scores.finish(rollouts)
        samples = [_sample(each) for group in made for each in group.trajectories]
        logprobs = [np.full(sample.num_loss_tokens, -0.5) for sample in samples]
        write_learned(directory, samples, old_logprobs=logprobs, logprobs=logprobs)


def _group(rng: np.random.Generator, name: str, chains: int, tokens: int, step: int) -> TrajectoryGroup:
    problem = Problem(id=f"p{name}", messages=({"role": "user", "content": f"What is {name}?"},))
    return TrajectoryGroup(
        id=name,
        problem=problem,
        trajectories=tuple(_trajectory(rng, name, problem.id, chain, tokens, step) for chain in range(chains)),
    )


def _trajectory(  # noqa: PLR0917 - what tells one from another
    rng: np.random.Generator, group: str, problem: str, chain: int, tokens: int, step: int
) -> Trajectory:
    mask = np.arange(tokens) >= tokens // 2
    segment = Segment(
        token_ids=rng.integers(0, 500, tokens, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
        turns=(
            Turn(
                message={"role": "assistant", "content": "an answer"},
                start=tokens // 2,
                end=tokens,
                sampled=True,
                policy_version=step,
                seconds=0.5,
            ),
        ),
    )
    return Trajectory(
        id=f"{group}/{chain}",
        problem_id=problem,
        group_id=group,
        chain=chain,
        segments=(segment,),
        stop=StopReason.FINISHED,
        metrics={"seconds": 0.5},
    )


def _sample(trajectory: Trajectory) -> TrainingSample:
    segment = trajectory.segments[0]
    return TrainingSample(
        trajectory_id=trajectory.id,
        token_ids=segment.token_ids,
        loss_mask=segment.loss_mask,
        rollout_logprobs=segment.logprobs,
        advantages=segment.loss_mask.astype(np.float32),
    )


def _open(run: RunDirectory) -> tuple[float, float, float, float, int]:
    """Seconds until the first page, the page again, a filtered page, and a group; bytes of memory at the most."""
    started = time.perf_counter()
    with _serving(run) as (address, process):
        _get(address + "/")
        opened = time.perf_counter() - started
        times = []
        for page in (
            "/",
            "/?min_reward=1&sort=reward&step=7",
            f"/train/{STEPS // 2}/{STEPS // 2:06d}-00003?colour=ratio",
        ):
            begun = time.perf_counter()
            _get(address + page)
            times.append(time.perf_counter() - begun)
        return opened, times[0], times[1], times[2], _peak(process.pid)


@contextmanager
def _serving(run: RunDirectory) -> Any:
    command = [sys.executable, "-m", "agentfly_lib", "view", str(run.path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0], process
    finally:
        process.terminate()
        process.wait(30)


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return psutil.Process(pid).memory_info().rss


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_ANSWERS_SECONDS) as answer:
        return answer.read()


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"NO_COLOR": "1"})
    return time.perf_counter() - started


def _times(what: str, measure: Callable[[], float], bar: float | None) -> list[Finding]:
    measure()  # files into the page cache
    return _told(what, [measure() for _ in range(REPEATS)], bar)


def _told(what: str, seconds: Sequence[float], bar: float | None) -> list[Finding]:
    return [
        Finding(what=f"{what}, median", value=statistics.median(seconds), unit="s", bar=bar),
        Finding(what=f"{what}, best", value=min(seconds), unit="s"),
    ]


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
