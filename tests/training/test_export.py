"""`agentfly export`: a checkpoint's model as a folder of its own, or nothing and a reason."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentfly_lib.cli import app
from agentfly_lib.errors import ShardError, UserError
from agentfly_lib.training.checkpoint import CheckpointState, seal, staging_directory
from agentfly_lib.training.export import export_checkpoint

MODEL = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}", "chat_template.jinja": b"t"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "checkpoints" / "000007"
    for folder in ("hf", "deepspeed"):
        (staging_directory(path) / folder).mkdir(parents=True)
    for name, content in MODEL.items():
        (staging_directory(path) / "hf" / name).write_bytes(content)
    (staging_directory(path) / "deepspeed" / "state.pt").write_bytes(b"optimizer")
    state = CheckpointState(
        policy_version=7, nonfinite_in_row=0, ranks=1, zero_stage=0, dtype="float32", trained_with={}
    )
    return seal(path, state).path


def test_the_model_alone_is_written_bit_by_bit(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "model"
    result = CliRunner().invoke(app, ["export", str(checkpoint), str(output)])
    assert result.exit_code == 0, result.output
    assert "version 7" in result.output
    assert {item.name: item.read_bytes() for item in output.iterdir()} == MODEL
    assert [item.name for item in output.parent.iterdir()] == ["model"]


def test_adapters_alone_are_written_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "000003"
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"a"}
    for folder, files in {"hf": {"config.json": b"{}"}, "adapter": adapter}.items():
        (staging_directory(path) / folder).mkdir(parents=True)
        for name, content in files.items():
            (staging_directory(path) / folder / name).write_bytes(content)
    state = CheckpointState(
        policy_version=3, nonfinite_in_row=0, ranks=1, zero_stage=0, dtype="float32", trained_with={}
    )
    seal(path, state)
    export_checkpoint(path, tmp_path / "out")
    assert {item.name: item.read_bytes() for item in (tmp_path / "out").iterdir()} == adapter


def test_what_exists_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "model"
    output.mkdir()
    with pytest.raises(UserError, match="model exists; name a folder that does not"):
        export_checkpoint(checkpoint, output)
    assert list(output.iterdir()) == []


def test_a_run_is_no_checkpoint_but_its_checkpoints_are_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a checkpoint.*000007"):
        export_checkpoint(checkpoint.parent.parent, tmp_path / "model")


@pytest.mark.parametrize("name", ["hf/model.safetensors", "deepspeed/state.pt"])
def test_a_damaged_checkpoint_is_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    file = checkpoint / name
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    with pytest.raises(ShardError, match=f"{file.name} does not match its checksum"):
        export_checkpoint(checkpoint, tmp_path / "model")
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


def test_the_checkpoint_is_unchanged(checkpoint: Path, tmp_path: Path) -> None:
    def state() -> dict[str, str]:
        files = (item for item in checkpoint.rglob("*") if item.is_file())
        return {str(item): hashlib.sha256(item.read_bytes()).hexdigest() for item in files}

    before = state()
    export_checkpoint(checkpoint, tmp_path / "model")
    assert state() == before
