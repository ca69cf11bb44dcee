"""What a run directory lets through when it is opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.configs import RunConfig, config_toml, load_config
from agentfly_lib.errors import ConfigError
from agentfly_lib.preflight import check_run, check_same_config

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
