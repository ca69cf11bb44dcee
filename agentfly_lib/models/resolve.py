"""From a model config to a directory that is known to be usable: config, safetensors weights, tokenizer, chat template.

Everything that can be wrong with a directory is looked for before anything expensive starts, without loading it: a
weights file that was cut short is seen by its header, a missing shard by the index.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentfly_lib.configs.model import (
    ModelConfig,
    PretrainedModelConfig,
    TinyModelConfig,
    TinyVisionModelConfig,
)
from agentfly_lib.errors import ModelError, first_line
from agentfly_lib.models.fingerprint import fingerprint_directory
from agentfly_lib.models.made import Progress, default_cache
from agentfly_lib.models.tiny import ensure_tiny
from agentfly_lib.models.tiny_vision import ensure_tiny_vision
from agentfly_lib.refs import ModelRef

__all__ = ["check_directory", "resolve_model"]

_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""What is fetched from the hub: never pickled weights, never code."""
_INDEX = "model.safetensors.index.json"
_TOKENIZER_FILES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("vocab.txt",))
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MAX_HEADER_BYTES = 100_000_000


def resolve_model(
    config: ModelConfig, cache: Path | None = None, progress: Progress | None = None, *, template: str | None = None
) -> ModelRef:
    """The directory of `config`'s model: made (`tiny`, `tiny_vision`), given, or fetched from the hub.

    cache: where the small model and the hashes of large files are kept; the user's cache directory by default.
    Raises `ModelError` naming what is missing and what to do.
    """
    cache = cache or default_cache()
    match config:
        case TinyModelConfig():
            return ensure_tiny(config, cache, progress)
        case TinyVisionModelConfig():
            return ensure_tiny_vision(config, cache, progress)
        case PretrainedModelConfig():
            directory = _local_directory(config)
            check_directory(directory, template=template)
            return ModelRef(path=directory, fingerprint=fingerprint_directory(directory, cache=cache))


def check_directory(directory: Path, *, template: str | None = None) -> None:
    """Raise `ModelError` unless `directory` holds a usable causal language model.

    It needs a chat template of its own unless the agent names one (`agent.template`).
    """
    config = _read_object(directory, "config.json", "it is no Hugging Face model directory")
    if not config.get("model_type"):
        raise ModelError(
            f"{directory / 'config.json'} names no `model_type`; use the config that belongs to the weights"
        )
    _check_weights(directory)
    if not any(all((directory / name).is_file() for name in names) for names in _TOKENIZER_FILES):
        raise ModelError(
            f"{directory} has no tokenizer (tokenizer.json); copy the files of its tokenizer there, "
            "or save it with `tokenizer.save_pretrained`"
        )
    if template is None and not _has_chat_template(directory):
        raise ModelError(
            f"{directory} has no chat template (chat_template.jinja, or `chat_template` in tokenizer_config.json), so "
            "an agent cannot use it; take the instruction-tuned variant of the model, or add a template"
        )


def _local_directory(config: PretrainedModelConfig) -> Path:
    name = config.name_or_path
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise ModelError(f"{path} is a file; set model.name_or_path to the directory that holds it, or to a hub id")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"there is no model directory {path}; check model.name_or_path")
    return _download(name, config.revision)


def _download(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=_HUB_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        reason = first_line(error)
        raise ModelError(
            f"{hub_id!r} is neither a directory here nor a model that can be fetched from the hub ({reason}); check "
            "model.name_or_path and model.revision, the network, HF_HUB_OFFLINE, and HF_TOKEN for a gated model"
        ) from error


def _check_weights(directory: Path) -> None:
    if (directory / _INDEX).is_file():
        shards = _read_object(directory, _INDEX, "its shards are unknown").get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelError(f"{directory / _INDEX} lists no weights; fetch the model again")
        for name in shards.values():
            if not isinstance(name, str) or name in ("", "..") or Path(name).name != name or "\\" in name:
                raise ModelError(
                    f"{directory / _INDEX} names {name!r} as a file of weights; only files in the same folder can be"
                )
        files = [directory / name for name in sorted(set(shards.values()))]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise ModelError(f"{directory} lacks {_listed(missing)} of its weights; fetch the model again")
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        pickled = sorted(path.name for pattern in _PICKLED for path in directory.glob(pattern))
        if pickled:
            raise ModelError(
                f"{directory} has pickled weights only ({_listed(pickled)}), which can run code when loaded, so "
                "they are refused; save the model with `model.save_pretrained(directory)`, which writes safetensors"
            )
        raise ModelError(f"{directory} has no weights (*.safetensors); fetch the model again")
    for file in files:
        _check_safetensors(file)


def _check_safetensors(file: Path) -> None:
    """A safetensors file says in its header how long it must be: 8 bytes length, JSON, then the tensors' bytes."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > min(size, _MAX_HEADER_BYTES):
                raise ValueError(f"its header of {length} bytes does not fit")
            header = json.loads(opened.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max((entry["data_offsets"][1] for entry in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"{file} is not a readable safetensors file ({error}); fetch it again") from error
    if size != expected:
        raise ModelError(f"{file} has {size} bytes, its header promises {expected}; fetch it again")


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").is_file() or (directory / "chat_template.json").is_file():
        return True
    if not (directory / "tokenizer_config.json").is_file():
        return False
    return bool(_read_object(directory, "tokenizer_config.json", "").get("chat_template"))


def _read_object(directory: Path, name: str, consequence: str) -> dict[str, Any]:
    file = directory / name
    if not file.is_file():
        raise ModelError(
            f"{directory} has no {name}, so {consequence}; check model.name_or_path or fetch the model again"
        )
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read ({error}); fetch the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds no JSON object; fetch the model again")
    return content


def _listed(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
