"""Models that are made on this machine, once each: in a directory of the cache whose name is a hash of the recipe.

The directory appears by a rename when it is whole, and holds the hash of each of its files, so that weights are never
used with another tokenizer: that fails in silence, as a reward of zero.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentfly_lib.errors import ModelError, ShardError
from agentfly_lib.models.fingerprint import fingerprint_directory, hash_files
from agentfly_lib.refs import ModelRef
from agentfly_lib.store.atomic import read_json, sync_directory, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Progress", "default_cache", "ensure_made", "one_thread", "recipe_directory", "save_network", "seal"]

Progress = Callable[[int, int, float], None]
"""Called after every supervised step with the steps done, the steps in all, and the loss in nats per token."""

_logger = logging.getLogger(__name__)
_MANIFEST = "warm_start.json"
_LOCK_TIMEOUT_SECONDS = 1800.0


def default_cache() -> Path:
    """Where models are kept unless another place is given: the user's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("agentfly") / "models"


def recipe_directory(prefix: str, identity: Mapping[str, Any], cache: Path | None) -> Path:
    """Where the model of a recipe is, or will be; the versions of the libraries that make it count too."""
    libraries = {name: version(name) for name in ("tokenizers", "torch", "transformers")}
    digest = hashlib.sha256(json.dumps({**identity, "libraries": libraries}, sort_keys=True).encode()).hexdigest()
    return (cache or default_cache()) / f"{prefix}-{digest[:16]}"


def ensure_made(directory: Path, write: Callable[[Path], None]) -> ModelRef:
    """The model in `directory`, made by `write` unless it is there. Two processes that ask at once make it once.

    write: writes a whole model into the directory that it is given, and seals it (`seal`).

    Raises `ModelError` if the cache cannot be written, or if another process holds the lock for half an hour.
    """
    from filelock import FileLock, Timeout

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_suffix(".lock"), timeout=_LOCK_TIMEOUT_SECONDS):
            if not _intact(directory):
                _make(directory, write)
    except Timeout as error:
        raise ModelError(
            f"another process has been making the small model for {_LOCK_TIMEOUT_SECONDS / 60:.0f} minutes and holds "
            f"{error.lock_file}; end that process, then try again"
        ) from error
    except OSError as error:
        raise ModelError(
            f"cannot write the small model to {directory.parent}: {error.strerror or error}; "
            "free some space or choose another cache directory"
        ) from error
    return ModelRef(path=directory, fingerprint=fingerprint_directory(directory))


def save_network(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Tokenizer, configs and weights. The output layer is the embedding; a safetensors file holds a tensor once."""
    from safetensors.torch import save_file

    tokenizer.save_pretrained(directory)
    model.config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def seal(directory: Path, about: Mapping[str, Any]) -> None:
    """Writes the manifest, last: what the model was made from, and the hash of each file."""
    write_json(directory / _MANIFEST, {**about, "files": hash_files(directory)})


@contextmanager
def one_thread() -> Iterator[None]:
    """A network this small gains nothing from a second thread, and loses much on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _intact(directory: Path) -> bool:
    if not directory.exists():
        return False
    try:
        expected = read_json(directory / _MANIFEST)["files"]
        found = hash_files(directory)
    except (ShardError, ModelError, KeyError, TypeError) as error:
        _logger.warning("the small model in %s is made again: %s", directory, error)
        return False
    found.pop(_MANIFEST, None)
    if found != expected:
        _logger.warning("the small model in %s is made again: its files have changed", directory)
        return False
    return True


def _make(directory: Path, write: Callable[[Path], None]) -> None:
    prefix = f"{directory.name}-making-"
    for leftover in directory.parent.glob(f"{prefix}*"):  # of a killed process: the lock is ours
        shutil.rmtree(leftover)
    workspace = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    try:
        write(workspace)
        if directory.exists():
            shutil.rmtree(directory)
        workspace.chmod(0o755)
        workspace.rename(directory)
        sync_directory(directory.parent)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
