"""By what running ranks are recognised, and where code that torch builds may be loaded from."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from agentfly_lib.errors import LearnerError
from agentfly_lib.refs import ModelRef
from agentfly_lib.training.identity import differences, extensions_directory, learner_fingerprint, training_identity

MODEL = ModelRef(path=Path("/models/one"), fingerprint="one")


def test_ranks_of_another_model_or_rule_are_told_apart(factories: ModuleType) -> None:
    config = factories.run_config()
    own = learner_fingerprint(config, MODEL)
    assert learner_fingerprint(factories.run_config(run={"seed": 7}), MODEL) == own
    others = [
        learner_fingerprint(config, MODEL.model_copy(update={"fingerprint": "changed in place"})),
        learner_fingerprint(config, MODEL.model_copy(update={"path": Path("/models/two")})),
        learner_fingerprint(factories.run_config(algorithm={"kl": {"coefficient": 0.1}}), MODEL),
        learner_fingerprint(factories.run_config(optim={"lr": 0.5}), MODEL),
        learner_fingerprint(factories.run_config(learner={"zero_stage": 2}), MODEL),
    ]
    assert len({own, *others}) == 6


def test_differences_name_the_keys_and_both_values(factories: ModuleType) -> None:
    one = training_identity(factories.run_config(), MODEL)
    two = training_identity(
        factories.run_config(algorithm={"loss": {"clip_low": 0.1}}, run={"steps": 11}),
        MODEL.model_copy(update={"path": Path("/elsewhere")}),
    )
    assert differences(one, one) == []
    assert differences(one, two) == ["algorithm.loss.clip_low: 0.2 -> 0.1", "run.steps: 10 -> 11"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "agentfly" / "torch-extensions"


def test_extensions_lie_in_the_users_cache_and_nobody_else_may_enter(cache: Path) -> None:
    assert extensions_directory() == cache
    cache.chmod(0o777)
    assert extensions_directory().stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extensions_directory()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(LearnerError, match=r"torch-extensions is not a directory of this user.*TORCH_EXTENSIONS_DIR"):
        extensions_directory()


def test_a_link_to_somewhere_else_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.parent.mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LearnerError, match="is not a directory of this user"):
        extensions_directory()
    cache.unlink()
    cache.write_text("a file")
    with pytest.raises(LearnerError, match=r"cannot use .*torch-extensions"):
        extensions_directory()
