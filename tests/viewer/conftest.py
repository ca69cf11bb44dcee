from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.configs import config_toml, load_config
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.types import Failure, FailureKind, StopReason
from tests.viewer.built_runs import HOSTILE, group, trajectory, write_step


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """Two steps: step 0 scored, with a failed chain; step 1 not scored yet."""
    directory = RunDirectory(tmp_path / "demo")
    directory.path.mkdir()
    config = load_config(Path("recipes/ci.toml"), [f"run.root={tmp_path}", "run.name=demo", "rollout.chains=2"])
    directory.config_file.write_text(config_toml(config))
    failure = Failure(kind=FailureKind.TOOL, message=HOSTILE, where="tool:double")
    first = group("000000-00000", trajectory("000000-00000", 0), trajectory("000000-00000", 1, reply="no", tool=None))
    second = group(
        "000000-00001",
        trajectory("000000-00001", 0, reply=HOSTILE),
        trajectory("000000-00001", 1, stop=StopReason.FAILED, failure=failure),
        question=HOSTILE,
    )
    rewards = {"000000-00000/0": 1.0, "000000-00000/1": 0.25, "000000-00001/0": 0.0, "000000-00001/1": None}
    write_step(directory, 0, [first, second], rewards)
    write_step(directory, 1, [group("000001-00000", trajectory("000001-00000", 0), trajectory("000001-00000", 1))])
    return directory
