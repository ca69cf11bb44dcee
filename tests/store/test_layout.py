"""Where things lie."""

from __future__ import annotations

from pathlib import Path

from agentfly_lib.store import RunDirectory


def test_paths_of_a_run():
    run = RunDirectory(Path("runs/demo"))
    assert run.config_file == Path("runs/demo/config.toml")
    assert run.step(12).rollout_manifest == Path("runs/demo/steps/000012/rollouts/MANIFEST.json")
    assert run.step(12).score_manifest == Path("runs/demo/steps/000012/scores/MANIFEST.json")
    assert run.step(12).update_file == Path("runs/demo/steps/000012/update.json")
    assert run.checkpoint(3) == Path("runs/demo/checkpoints/000003")
    assert run.evaluation(3, "greedy").report_file == Path("runs/demo/evaluations/000003/greedy/report.json")


def test_steps_are_listed_in_order_and_strangers_are_not(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.steps() == []
    for name in ("000010", "000002", "1000000", "notes", "000003.tmp"):
        (tmp_path / "steps" / name).mkdir(parents=True)
    (tmp_path / "steps" / "000005").write_text("a file")
    assert run.steps() == [2, 10, 1000000]


def test_archived_scores_have_a_plain_free_name(tmp_path):
    step = RunDirectory(tmp_path).step(0)
    assert step.archived_scores("my.pkg:fn/x").name == "scores-my.pkg_fn_x"
    (step.path / "scores-a").mkdir(parents=True)
    assert step.archived_scores("a").name == "scores-a-2"
