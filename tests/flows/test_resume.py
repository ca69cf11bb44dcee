"""A run that is stopped in every stage, and started again each time, ends as if nothing had happened."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.ledger import run_balance
from agentfly_lib.store.scores import read_score_manifest
from agentfly_lib.training.checkpoint import checkpoint_at, verify_checkpoint

pytestmark = [pytest.mark.stack, pytest.mark.slow]

HERE = Path(__file__).resolve().parent
BLOWS = [("interrupt", 1), ("update", 1), ("record", 1), ("checkpoint", 2)]
"""The first is Ctrl-C, the others are kill -9. In the middle of a collection: `test_asynchronous.py`."""
BRIEF = ["evaluation.greedy=false", "evaluation.samples=1", "data.eval_problems=4", "rollout.max_concurrency=16"]


def hurt(places: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "killed_run.py"), places, *arguments],
        cwd=HERE.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )


def struck(stage: str, step: int, arguments: list[str]) -> None:
    done = hurt(f"{stage}:{step}", arguments)
    expected = 130 if stage == "interrupt" else -signal.SIGKILL
    assert done.returncode == expected, (stage, done.stdout[-1000:], done.stderr[-3000:])
    assert stage != "interrupt" or "interrupted; run the same command again to go on" in done.stderr


def in_mlflow(root: Path, name: str) -> list[tuple[str]]:
    """States of the runs of this name."""
    with sqlite3.connect(f"file:{root / 'mlflow.db'}?mode=ro", uri=True) as database:
        return database.execute("select status from runs where name = ?", [name]).fetchall()


def options(*changes: str) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def parts(run: RunDirectory) -> dict[Path, str]:
    """Hash of every rollout part that is on disk."""
    found = sorted((run.path / "steps").glob("*/rollouts/part-*.arrow"))
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def is_moment(line: str) -> bool:
    """`killed SECONDS` or `noticed SECONDS`, or the same of a rank."""
    return line.partition(" ")[0] in ("killed", "noticed", "killed-rank", "noticed-rank")


def wait_until_gone(root: Path, seconds: float = 20.0) -> list[list[str]]:
    """Processes of the killed run that are still there when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        left = [
            process.info["cmdline"]
            for process in psutil.process_iter(["cmdline", "environ", "status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE
            and (process.info["environ"] or {}).get("PREFECT_HOME", "").startswith(str(root))
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def times_tried(root: Path, flow_run: str) -> dict[str, int]:
    """Of each task of a flow run that has ended."""
    with sqlite3.connect(f"file:{root / 'prefect' / 'prefect.db'}?mode=ro", uri=True) as database:
        return dict(
            database.execute(
                "select task_run.name, max(task_run.run_count) from task_run join flow_run "
                "on task_run.flow_run_id = flow_run.id where flow_run.name = ? group by task_run.name",
                [flow_run],
            ).fetchall()
        )


@pytest.mark.timeout(900)
def test_stopped_in_every_stage(agentfly, root: Path, tmp_path: Path) -> None:
    arguments = ["recipes/ci.toml", *options(f"run.root={root}", "run.name=killed", *BRIEF)]
    arguments += options("rollout.groups_per_part=1")
    run = RunDirectory(root / "killed")
    kept: dict[Path, str] = {}
    for stage, step in BLOWS:
        struck(stage, step, arguments)
        found = parts(run)
        assert kept.items() <= found.items(), f"parts changed or vanished before the blow in {stage}"
        kept = found
        if stage == "interrupt":
            assert run.step(step).score_manifest.exists()
            assert not read_score_manifest(run.step(step)).complete
            assert in_mlflow(root, "killed") == [("KILLED",)]
        if stage != "checkpoint":
            assert not run.step(step).update_file.exists()
        assert wait_until_gone(root) == [], f"processes outlived the blow in {stage}"
        if stage == "checkpoint" and run.checkpoint(step).exists():
            # The ranks may outlive the command for a moment, and finish what they were writing: whole, or not there.
            verify_checkpoint(checkpoint_at(run.checkpoint(step)))

    final = agentfly("train", *arguments)
    assert final.status == 0, final.errors[-4000:]
    assert kept.items() <= parts(run).items(), "a finished trajectory was made again"
    balances = run_balance(run)
    assert [(row.step, row.balanced, row.requested) for row in balances] == [
        (0, True, 64),
        (1, True, 64),
        (2, True, 64),
    ]
    ids = [
        identity
        for step in run.steps()
        for part in json.loads(run.step(step).rollout_manifest.read_text())["parts"]
        for identity in part["groups"]
    ]
    assert len(ids) == len(set(ids)) == 24, "a group was counted twice"
    assert in_mlflow(root, "killed") == [("FINISHED",)]

    weights = tmp_path / "uninterrupted.safetensors"
    subprocess.run(
        [sys.executable, str(HERE / "replay_program.py"), str(run.path), str(weights)],
        cwd=HERE.parents[1],
        capture_output=True,
        timeout=200,
        check=True,
    )
    expected, found = load_file(weights), load_file(run.checkpoint(3) / "hf" / "model.safetensors")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert np.array_equal(value.view(np.uint32), found[name].view(np.uint32)), f"{name} is not bit-identical"


@pytest.mark.timeout(900)
def test_one_of_two_engines_and_a_rank_die_and_a_run_of_adapters_goes_on(root: Path) -> None:
    arguments = ["recipes/ci.toml", *options(f"run.root={root}", "run.name=wounded", *BRIEF)]
    arguments += options("inference.replicas=2", "learner.ranks=2", "learner.zero_stage=2")
    arguments += options("learner.lora.rank=8", "inference.lora_sync=adapter")
    done = hurt("one-engine:0,rank:2", arguments)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    when = {line.split()[0]: float(line.split()[1]) for line in reversed(done.stderr.splitlines()) if is_moment(line)}
    # A second on a quiet machine; that it is ten at most is shown in virtual time (tests/inference/test_client.py).
    assert 0 <= when["noticed"] - when["killed"] < 30
    assert 0 <= when["noticed-rank"] - when["killed-rank"] < 10, "a dead rank is noticed within ten seconds"
    run = RunDirectory(root / "wounded")
    assert [(row.balanced, row.requested, row.failed) for row in run_balance(run)] == [(True, 64, 0)] * 3
    counts = times_tried(root, "train-wounded")
    assert counts["collect-000000"] == counts["collect-000001"] == 1, "the other engine did the work of the dead one"
    assert counts["sync-000001"] == 1, "the dead engine was replaced, without a failure of the next stage"
    assert counts["update-000002"] == 2, "the update was tried again after the rank's death"
    metrics = [json.loads((run.path / "steps" / f"{step:06d}" / "metrics.json").read_text()) for step in range(3)]
    assert sum(each.get("engine/replaced/count", 0) for each in metrics) == 1
    assert metrics[0]["engine/lost/count"] == 1
    assert all(each["train/mismatch/max"] < 1e-4 for each in metrics), "engines sample with the learner's adapters"
