"""Runs on disk, listed and held against each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentfly_lib.configs import config_toml, load_config
from agentfly_lib.configs.run import TrackingConfig
from agentfly_lib.errors import UserError
from agentfly_lib.evaluation.intervals import mean_interval
from agentfly_lib.evaluation.report import EvaluationReport, write_report
from agentfly_lib.evaluation.runs import compare_runs, find_runs, read_run
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.tracking.tracker import Tracker
from agentfly_lib.viewer.compare import show_comparison, track_comparison
from agentfly_lib.viewer.compare_report import runs_text


def report(version: int, rewards: dict[str, float]) -> EvaluationReport:
    return EvaluationReport(
        policy_version=version,
        mode="sampled",
        reward_name="math_equal",
        problems=len(rewards),
        samples=1,
        reward=mean_interval(list(rewards.values())),
        pass_at={},
        scored=len(rewards),
        truncated=0,
        failed=0,
        dropped=0,
        behaviour={},
        problem_rewards=rewards,
    )


@pytest.fixture
def make_run(tmp_path):
    """`make_run(name, {version: rewards by problem}, "key=value", ...)`: 100 tokens and 30 seconds a step."""

    def make(name: str, evaluations: dict[int, dict[str, float]], *changes: str, steps_done: int = 2) -> Path:
        run = RunDirectory(tmp_path / name)
        settings = [f"run.root={tmp_path}", f"run.name={name}", "run.steps=2", *changes]
        run.path.mkdir()
        run.config_file.write_text(config_toml(load_config(Path("recipes/ci.toml"), settings)))
        for step in range(steps_done):
            run.step(step).path.mkdir(parents=True)
            run.step(step).update_file.write_text("{}")
            metrics = {"rollout/sampled_tokens/sum": 100.0, "time/step/seconds": 30.0}
            run.step(step).metrics_file.write_text(json.dumps(metrics))
        for version, rewards in evaluations.items():
            directory = run.evaluation(version, "sampled")
            directory.path.mkdir(parents=True)
            write_report(directory.report_file, report(version, rewards))
        return run.path

    return make


def problems(value: float, count: int = 8) -> dict[str, float]:
    return {f"p{index}": value for index in range(count)}


def test_a_run_is_read_with_what_it_had_cost(make_run):
    run = read_run(make_run("a", {0: problems(0.0), 1: problems(0.5), 2: problems(1.0)}))
    assert (run.name, run.steps_done, run.finished) == ("a", 2, True)
    assert [(point.version, point.tokens, point.seconds) for point in run.points] == [
        (0, 0, 0),
        (1, 100, 30),
        (2, 200, 60),
    ]
    reached = run.reached(0.4)
    assert reached is not None
    assert reached.version == 1
    assert run.reached(1.5) is None


def test_runs_are_compared_over_their_problems(make_run):
    first = make_run("a", {0: problems(0.0), 2: problems(0.5)})
    better = make_run("b", {0: problems(0.0), 1: problems(0.75), 2: problems(1.0)}, "optim.lr=1e-4")
    compared = compare_runs([first, better])
    assert compared.parameters == (("optim.lr", ("0.0005", "0.0001")),)
    _, pair = compared.paired
    assert (pair.difference.mean, pair.difference.problems, pair.significant) == (0.5, 8, True)
    assert compared.target == 0.5
    text = show_comparison([first, better], markdown=first / "c.md", figure=first / "c.png")
    for line in (text, (first / "c.md").read_text()):
        assert "+0.500 [+0.500, +0.500], p 0.008" in line  # all eight the same way: 2 of 2**8
        assert "optim.lr" in line
    assert "100" in text.splitlines()[3]  # b had reached 0.5 after its first step
    assert (first / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "tokens to 0.900" in show_comparison([first, better], target=0.9)


def test_what_cannot_be_compared_is_said(make_run):
    first = make_run("a", {2: problems(0.5)})
    others = [make_run("b", {}), make_run("c", {2: {"other": 1.0}})]
    compared = compare_runs([first, *others])
    assert compared.paired[1] == "not evaluated yet"
    assert "no scored problem in common" in compared.paired[2]
    assert compared.target is None
    assert "not evaluated yet" in show_comparison([first, *others])
    with pytest.raises(UserError, match="at least two"):
        compare_runs([first])
    with pytest.raises(UserError, match="not a run directory"):
        compare_runs([first, first.parent])


def test_runs_are_listed_and_a_damaged_one_is_named(make_run, tmp_path):
    make_run("a", {0: problems(0.0)}, steps_done=1)
    make_run("b", {})
    (make_run("c", {}) / "config.toml").write_text("[run")
    found, faults = find_runs(tmp_path)
    assert [run.name for run in found] == ["a", "b"]
    assert len(faults) == 1
    assert "not valid TOML" in faults[0]
    text = runs_text(found)
    assert "1 of 2" in text
    assert "0.000 [0.000, 0.324]" in text  # Wilson's interval of 0 of 8


@pytest.mark.slow
def test_the_comparison_goes_to_mlflow(make_run, tmp_path, empty_store):
    import mlflow

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    runs = [make_run("a", {2: problems(0.5)}), make_run("b", {2: problems(1.0)})]
    with Tracker.open(runs[0], TrackingConfig(), run_name="a", root=tmp_path):
        pass
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("agentfly")
    assert experiment is not None
    (before,) = client.search_runs([experiment.experiment_id])
    track_comparison(runs)
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.status, found.info.end_time) == ("FINISHED", before.info.end_time)
    names = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert "comparison.md" in names
    assert {file.path for file in client.list_artifacts(found.info.run_id, "figures")} == {"figures/comparison.png"}
