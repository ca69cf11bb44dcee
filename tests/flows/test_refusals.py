"""What is wrong is said at once, with what, where and what to do, and nothing is started or lost."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from agentfly_lib.errors import ConfigError
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.lock import RunLock

CI = "recipes/ci.toml"


@pytest.fixture
def train(agentfly, tmp_path: Path):
    def run(*overrides: str):
        options = [part for override in overrides for part in ("--set", override)]
        return agentfly("train", CI, "--set", f"run.root={tmp_path / 'runs'}", *options)

    return run


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optim.lrr=1", "unknown key optim.lrr (value 1): did you mean optim.lr?"),
        ('agent.tools=["calculater"]', "unknown tool 'calculater': did you mean 'calculator'?"),
        ('agent.tools=["nowhere.module:thing"]', "nowhere.module"),
        ("agent.reward.name=math_eqal", "unknown reward 'math_eqal': did you mean 'math_equal'?"),
        ("rollout.context_length=100", "leaves no room after a prompt"),
        ("run.root=/proc/nowhere", "cannot be made"),
    ],
)
def test_a_wrong_recipe(train, tmp_path: Path, override: str, expected: str) -> None:
    refused = train(override)
    assert refused.status == 2
    assert expected in refused.errors
    assert "Traceback" not in refused.errors
    assert not (tmp_path / "runs" / "ci").exists()


def test_a_missing_data_file(agentfly, tmp_path: Path) -> None:
    refused = agentfly(
        "train", "recipes/gsm8k-tiny.toml", "--set", f"run.root={tmp_path}", "--set", "data.train=/nowhere/train.jsonl"
    )
    assert refused.status == 2
    assert "data.train = /nowhere/train.jsonl: no such file" in refused.errors


@pytest.mark.stack
def test_a_model_without_a_chat_template(agentfly, tmp_path: Path) -> None:
    from agentfly_lib.configs import TinyModelConfig
    from agentfly_lib.models.tiny import ensure_tiny

    model = tmp_path / "model"
    model.mkdir()
    for file in ensure_tiny(TinyModelConfig()).path.iterdir():
        if file.name != "chat_template.jinja":
            (model / file.name).write_bytes(file.read_bytes())
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[run]\nname = "x"\nroot = "{tmp_path / "runs"}"\n'
        f'[model]\ntype = "pretrained"\nname_or_path = "{model}"\n[data]\ntype = "arithmetic"\n'
    )
    refused = agentfly("train", recipe)
    assert refused.status == 2
    assert "has no chat template" in refused.errors


def test_a_run_in_use(train, tmp_path: Path) -> None:
    with RunLock(RunDirectory(tmp_path / "runs" / "ci")):
        refused = train()
    assert refused.status == 2
    assert "is in use by process" in refused.errors


def test_a_run_with_another_config(train, tmp_path: Path) -> None:
    from agentfly_lib.configs import config_toml, load_config

    directory = RunDirectory(tmp_path / "runs" / "ci")
    directory.path.mkdir(parents=True)
    directory.config_file.write_text(config_toml(load_config(Path(CI), ["optim.lr=1e-5", "run.steps=7"])))
    refused = train()
    assert refused.status == 2
    assert "optim.lr: 1e-05 -> 0.0005" in refused.errors
    assert "run.steps: 7 -> 3" in refused.errors


@pytest.mark.parametrize("command", ["ledger", "show"])
def test_a_folder_that_is_no_run(agentfly, tmp_path: Path, command: str) -> None:
    refused = agentfly(command, tmp_path)
    assert refused.status == 2
    assert "is not a run directory" in refused.errors


def test_a_ledger_that_is_off(agentfly, tmp_path: Path) -> None:
    from agentfly_lib.configs import config_toml, load_config

    run = RunDirectory(tmp_path / "ci")
    run.step(0).rollouts.mkdir(parents=True)
    run.config_file.write_text(config_toml(load_config(Path(CI))))
    manifest = {"step": 0, "policy_version": 0, "chains": 2, "group_ids": ["a", "b"], "complete": True}
    run.step(0).rollout_manifest.write_text(json.dumps(manifest))
    off = agentfly("ledger", run.path)
    assert off.status == 1
    assert "OFF" in off.output
    assert "does not balance in step 0" in off.errors


def test_a_port_in_use(agentfly, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = agentfly("ui", "--root", tmp_path, "--mlflow-port", str(port))
    assert refused.status == 2
    assert f"127.0.0.1:{port} cannot be used" in refused.errors
    assert "--mlflow-port" in refused.errors


def test_pages_without_runs(agentfly, tmp_path: Path) -> None:
    refused = agentfly("ui", "--root", tmp_path / "none")
    assert refused.status == 2
    assert "holds no runs yet" in refused.errors


@pytest.fixture
def check(tmp_path: Path):
    """`check(config)`: what the flow does between the preparation of data and model and the start of anything."""
    from agentfly_lib.configs import RunConfig, TinyModelConfig
    from agentfly_lib.data.prepare import prepare_dataset
    from agentfly_lib.models.tiny import ensure_tiny
    from agentfly_lib.pipeline import preparation
    from agentfly_lib.pipeline.session import Session
    from agentfly_lib.viewer.live import LiveDisplay

    def run(config: RunConfig) -> None:
        session = Session(
            config=config,
            directory=RunDirectory(tmp_path / "x"),
            tracker=None,  # pyright: ignore[reportArgumentType]
            display=LiveDisplay.current(),
            trains=True,
        )
        session.model = ensure_tiny(TinyModelConfig())
        preparation.check(session, prepare_dataset(config.data, tmp_path / "datasets"))

    return run


@pytest.mark.stack
def test_a_reward_that_needs_a_column_that_is_not_there(check, tmp_path: Path) -> None:
    from agentfly_lib.configs import load_config

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"What is {n} + 1?"}) + "\n" for n in range(64)))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[run]\nname = "x"\n[model]\ntype = "tiny"\n[data]\ntype = "files"\ntrain = "{rows}"\n'
        "[rollout]\ncontext_length = 1024\nmax_prompt_tokens = 512\n"
    )
    with pytest.raises(ConfigError, match="'math_equal' asks for the column 'answer'"):
        check(load_config(recipe))


@pytest.mark.stack
def test_a_resume_that_would_lose_what_the_optimizer_keeps_on_a_disk(check, tmp_path: Path) -> None:
    from agentfly_lib.configs import load_config
    from agentfly_lib.training.checkpoint import CheckpointState, seal, staging_directory

    disk = ["learner.zero_stage=3", "learner.offload.optimizer=nvme", f"learner.offload.nvme_path={tmp_path}"]
    check(load_config(Path(CI), disk))
    path = tmp_path / "x" / "checkpoints" / "000002"
    staging_directory(path).mkdir(parents=True)
    shape = {"ranks": 1, "zero_stage": 3, "dtype": "float32"}
    seal(path, CheckpointState(policy_version=2, nonfinite_in_row=0, trained_with={}, **shape))
    with pytest.raises(ConfigError, match=r"000002 cannot be resumed from: .*Start a new run from .*000002/hf"):
        check(load_config(Path(CI), disk))
    check(load_config(Path(CI)))


@pytest.mark.stack
def test_a_context_longer_than_the_model_was_made_for(check) -> None:
    from agentfly_lib.configs import load_config

    with pytest.raises(ConfigError, match="context_length=100000 is more than the 2048 positions"):
        check(load_config(Path(CI), ["rollout.context_length=100000"]))


@pytest.mark.slow
def test_a_row_that_cannot_be_read(agentfly, root: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "What is 1 + 1?", "answer": "2"}\n{"question": \n')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[run]\nname = "x"\nroot = "{root}"\n[model]\ntype = "tiny"\n[data]\ntype = "files"\ntrain = "{rows}"\n'
    )
    refused = agentfly("prepare", recipe)
    assert refused.status == 2
    assert "rows.jsonl line 2" in refused.errors


def test_a_recipe_is_checked_and_shown_resolved(agentfly) -> None:
    import tomllib

    shown = agentfly("config", "check", CI, "--set", "optim.lr=2e-4")
    assert shown.status == 0
    resolved = tomllib.loads(shown.output)
    assert resolved["optim"]["lr"] == 2e-4
    assert resolved["rollout"]["flush_seconds"] == 0.1, "defaults are shown too"


@pytest.mark.stack
def test_the_small_model_is_found_by_the_command_line(agentfly) -> None:
    from agentfly_lib.configs import TinyModelConfig
    from agentfly_lib.models.tiny import ensure_tiny

    assert agentfly("model", "tiny", "--print-path").output.strip() == str(ensure_tiny(TinyModelConfig()).path)
