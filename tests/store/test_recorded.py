"""A run is the folder that holds it, whatever its recipe was called when it began."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentfly_lib.configs import config_toml, load_config
from agentfly_lib.errors import UserError
from agentfly_lib.preflight import check_same_config
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.recorded import actors_namespace, recipe_of, recorded_config


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """`runs/demo`, which was called `ci` in another folder when it began."""
    run = tmp_path / "runs" / "demo"
    (run / "checkpoints" / "000003" / "hf").mkdir(parents=True)
    (run / "config.toml").write_text(config_toml(load_config(Path("recipes/ci.toml"), ["run.root=somewhere/else"])))
    return run


def test_a_run_is_called_as_its_folder_and_lies_there(copied: Path, monkeypatch) -> None:
    monkeypatch.chdir(copied.parent)
    for path in (copied, Path("demo")):
        assert recorded_config(path).run.directory == copied
    check_same_config(recorded_config(copied))


def test_a_folder_whose_name_looks_like_a_number(copied: Path) -> None:
    assert recorded_config(copied.rename(copied.with_name("1e3"))).run.name == "1e3"


def test_a_policy_belongs_to_the_run_that_it_lies_in(copied: Path) -> None:
    for policy in (copied, copied / "checkpoints" / "000003", copied / "checkpoints" / "000003" / "hf"):
        assert recipe_of(policy).run.directory == copied
    assert recipe_of(copied, ["run.name=other"]).run.directory == copied.parent / "other"
    with pytest.raises(UserError, match="is not inside a run directory; name a recipe"):
        recipe_of(copied.parent)


def test_actors_of_a_directory_are_found_from_every_node_and_are_not_those_of_a_copy(tmp_path, monkeypatch) -> None:
    here, copy = tmp_path / "a" / "demo", tmp_path / "b" / "demo"
    here.mkdir(parents=True)
    namespace = actors_namespace(RunDirectory(here))
    assert namespace.startswith("agentfly-demo-")
    shutil.copytree(here, copy)
    assert actors_namespace(RunDirectory(copy)) != namespace
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platform.node", lambda: "another")
    assert actors_namespace(RunDirectory(Path("a/demo"))) == namespace, "however it is named"
