"""What a flow that only uses a policy is called, and which model it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.configs import PretrainedModelConfig, RunConfig, config_toml, load_config
from agentfly_lib.errors import ConfigError, ModelError
from agentfly_lib.pipeline.policy import policy_config, recorded_recipe


@pytest.fixture
def recipe() -> RunConfig:
    return load_config(Path("recipes/ci.toml"))


def renamed(recipe: RunConfig, name: str) -> RunConfig:
    return recipe.model_copy(update={"run": recipe.run.model_copy(update={"name": name})})


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("qwen-3", "ci-evaluate-qwen-3"),
        ("my model", "ci-evaluate-my-model"),
        ("a+b@c (new)", "ci-evaluate-a-b-c--new-"),
        ("größe", "ci-evaluate-gr--e"),
        ("m" * 200, "ci-evaluate-" + "m" * 41),
    ],
)
def test_any_folder_gives_a_name_that_a_run_can_have(tmp_path: Path, recipe: RunConfig, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir()
    config = policy_config(recipe, tmp_path / folder, suffix="evaluate")
    assert config.run.name == name
    assert isinstance(config.model, PretrainedModelConfig)
    assert config.model.name_or_path == str(tmp_path / folder)
    (tmp_path / "config.toml").write_text(config_toml(config))
    assert load_config(tmp_path / "config.toml") == config, "what a session writes can be read again"


def test_a_long_name_keeps_what_tells_policies_apart(tmp_path: Path, recipe: RunConfig) -> None:
    (tmp_path / "000030").mkdir()
    long = renamed(recipe, "r" * 100)
    found = policy_config(long, tmp_path / "000030", suffix="evaluate").run.name
    assert found == "r" * 84 + "-evaluate-000030"
    assert policy_config(long, None, suffix="collect").run.name == "r" * 92 + "-collect"


def test_what_is_no_directory_is_refused(tmp_path: Path, recipe: RunConfig) -> None:
    with pytest.raises(ModelError, match="neither a checkpoint nor a model directory"):
        policy_config(recipe, tmp_path / "gone", suffix="evaluate")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ModelError, match="has no checkpoint yet"):
        policy_config(recipe, tmp_path, suffix="evaluate")


def test_the_recipe_of_a_checkpoint_is_the_one_of_its_run(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    for folder in (root / "demo", root / "deep" / "demo", elsewhere / "demo"):
        (folder / "checkpoints" / "000003").mkdir(parents=True)
    (root / "demo/config.toml").write_text(Path("recipes/ci.toml").read_text())
    assert recorded_recipe(root / "demo/checkpoints/000003", root).run.directory == root / "demo"
    (root / "linked").symlink_to(elsewhere / "demo")
    refused = ("linked/checkpoints/000003", "deep/demo/checkpoints/000003", "../elsewhere/demo/checkpoints/000003")
    for name in (
        *refused,
        "demo/checkpoints",
        "demo",
        "demo/checkpoints/000004",
        "demo/checkpoints/../../checkpoints/x",
    ):
        with pytest.raises(ConfigError, match="is not a checkpoint of a run in"):
            recorded_recipe(root / name, root)
