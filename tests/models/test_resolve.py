"""A model directory is usable, or the error says what is missing and what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentfly_lib.configs.model import PretrainedModelConfig
from agentfly_lib.errors import ModelError
from agentfly_lib.models.fingerprint import fingerprint_directory
from agentfly_lib.models.resolve import check_directory, resolve_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "qwen2"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    save_file({"weight": np.zeros(300_000, dtype=np.float32)}, directory / "model.safetensors")
    return directory


def resolve(path: Path | str, cache: Path):
    return resolve_model(PretrainedModelConfig(name_or_path=str(path)), cache)


def test_a_good_directory_is_itself(model: Path, tmp_path: Path):
    ref = resolve(model, tmp_path / "cache")

    assert ref.path == model
    assert ref.fingerprint == fingerprint_directory(model)


def _shard(directory: Path, *present: str) -> None:
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in present:
        save_file({"x": np.zeros(3, dtype=np.float32)}, directory / name)


def _index(directory: Path, name: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))


def _pickle(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def _cut(directory: Path) -> None:
    os.truncate(directory / "model.safetensors", 1000)


def _garbage(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "no config.json"),
        (lambda d: (d / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda d: (d / "config.json").write_text("{}"), "names no `model_type`"),
        (lambda d: (d / "model.safetensors").unlink(), "has no weights"),
        (_pickle, r"pickled weights only \(pytorch_model.bin\).*refused.*save_pretrained"),
        (_cut, "has 1000 bytes, its header promises"),
        (_garbage, "not a readable safetensors file"),
        (lambda d: _shard(d, "model-1.safetensors"), "lacks model-2.safetensors of its weights"),
        *(
            (
                lambda d, name=name: _index(d, name),
                "names .* as a file of weights; only files in the same folder can be",
            )
            for name in (
                "../model.safetensors",
                "/etc/passwd",
                "a/b.safetensors",
                "..",
                ".",
                "",
                3,
                None,
                ["x"],
                "a\\b",
            )
        ),
        (lambda d: _index(d, "passwords.txt"), "lacks passwords.txt of its weights"),
        (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda d: (d / "chat_template.jinja").unlink(), "no chat template.*instruction-tuned"),
    ],
)
def test_what_is_missing_is_named_with_a_remedy(model: Path, spoil: Callable[[Path], object], message: str):
    spoil(model)

    with pytest.raises(ModelError, match=message) as caught:
        check_directory(model)

    assert str(model) in str(caught.value)


def test_whole_shards_and_a_template_in_the_tokenizer_s_config_are_fine(model: Path):
    _shard(model, "model-1.safetensors", "model-2.safetensors")
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')

    check_directory(model)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c"])
def test_a_path_that_is_not_there_is_never_asked_of_the_hub(name: str, tmp_path: Path):
    with pytest.raises(ModelError, match="there is no model directory"):
        resolve(name, tmp_path)


def test_a_file_is_no_directory(model: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="is a file"):
        resolve(model / "model.safetensors", tmp_path)


def test_a_hub_that_cannot_be_reached_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(ModelError, match=r"'nobody/no-such-model' is neither.*HF_HUB_OFFLINE"):
        resolve("nobody/no-such-model", tmp_path)


def test_the_fingerprint_is_of_names_and_contents(model: Path, tmp_path: Path):
    first = fingerprint_directory(model)
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_text("x")
    assert fingerprint_directory(model) == first, "hidden files do not count"

    (model / "chat_template.jinja").rename(model / "other.jinja")
    renamed = fingerprint_directory(model)
    (model / "other.jinja").write_text("changed")

    assert len({first, renamed, fingerprint_directory(model)}) == 3


def test_large_files_are_read_once_and_again_when_they_change(model: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    first = fingerprint_directory(model, cache=cache)
    (remembered,) = json.loads((cache / "fingerprints.json").read_text()).items()
    assert "model.safetensors" in remembered[0], "the only file above a mebibyte"
    assert fingerprint_directory(model, cache=cache) == first

    weights = np.zeros(300_000, dtype=np.float32)
    weights[7] = 1
    save_file({"weight": weights}, model / "model.safetensors")

    assert fingerprint_directory(model, cache=cache) == fingerprint_directory(model) != first


def test_a_broken_memory_of_hashes_only_costs_time(model: Path, tmp_path: Path):
    (tmp_path / "fingerprints.json").write_text("{")

    assert fingerprint_directory(model, cache=tmp_path) == fingerprint_directory(model)
