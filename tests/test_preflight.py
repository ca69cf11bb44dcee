"""What a run directory lets through when it is opened again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from agentfly_lib.configs import RunConfig, config_toml, load_config
from agentfly_lib.errors import ConfigError
from agentfly_lib.preflight import check_run, check_same_config, replay_range
from agentfly_lib.refs import StepReport
from agentfly_lib.store import ScoreStore
from agentfly_lib.store.atomic import write_model
from agentfly_lib.store.layout import RunDirectory

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "ci.toml"


def recipe(root: Path, *overrides: str) -> RunConfig:
    return load_config(RECIPE, [f"run.root={root}", *overrides])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    config = recipe(tmp_path)
    config.run.directory.mkdir(parents=True)
    (config.run.directory / "config.toml").write_text(config_toml(config))
    return tmp_path


def test_another_shape_of_the_learner_needs_permission(root: Path) -> None:
    check_same_config(recipe(root))
    with pytest.raises(ConfigError, match=r"learner\.zero_stage: 0 -> 2\n.*\n.*learner\.allow_reshape=true"):
        check_same_config(recipe(root, "learner.zero_stage=2"))
    check_same_config(recipe(root, "learner.zero_stage=2", "learner.ranks=2", "learner.allow_reshape=true"))


def test_permission_for_another_shape_is_for_nothing_else(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"config:\n  - optim\.lr: \S+ -> 0\.5\nRun") as refused:
        check_same_config(recipe(root, "optim.lr=0.5", "learner.ranks=2", "learner.allow_reshape=true"))
    assert "allow_reshape" not in str(refused.value)


def test_who_reached_a_limit_of_time_may_raise_it(root: Path) -> None:
    check_same_config(recipe(root, "inference.update_timeout_seconds=1800", "rollout.stage_timeout_seconds=7200"))


def test_adapters_without_their_package_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_run(recipe(tmp_path))
    monkeypatch.setattr("agentfly_lib.preflight.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package peft"):
        check_run(recipe(tmp_path, "learner.lora.rank=4"))


def test_config_check_finds_what_a_run_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in modules of the working folder, and without a trace."""
    from agentfly_lib.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine_checked.py").write_text(
        "from agentfly_lib.tools import tool\n\n@tool\ndef convert(x: str) -> str:\n    'Converts.'\n    return x\n"
    )
    before = {*tmp_path.iterdir(), tmp_path / "__pycache__"}
    with patch.dict(os.environ):
        os.environ.pop("PREFECT_HOME", None)
        good, bad = (
            CliRunner().invoke(app, ["config", "check", str(RECIPE), "--set", f"agent.tools=['mine_checked:{name}']"])
            for name in ("convert", "convrt")
        )
    assert good.exit_code == 0, good.output
    assert isinstance(bad.exception, ConfigError)
    assert "did you mean convert" in str(bad.exception)
    assert 'name = "ci"' in good.output
    assert {*tmp_path.iterdir()} <= before


def test_a_replay_is_refused_where_another_reward_has_scored_since(root: Path) -> None:
    config = recipe(root)
    for number in (0, 1):
        step = RunDirectory(config.run.directory).step(number)
        ScoreStore(step, "math_equal")
        report = StepReport(
            step=number, policy_version=number + 1, metrics={}, seconds={}, weights_digest="", reward="math_equal"
        )
        write_model(step.update_file, report)
    assert replay_range(config, 0, None) == (0, 1)
    ScoreStore(step, "format")  # keeps the scores of the other in scores-math_equal
    assert replay_range(config, 0, 0) == (0, 0)
    with pytest.raises(ConfigError, match=r"of the reward 'format', but step 1 was trained on those of 'math_equal'"):
        replay_range(config, 0, None)
