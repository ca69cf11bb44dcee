"""The small model that makes a laptop demo possible: half a million parameters, made on this machine in under a minute.

A Qwen2 network and its tokenizer are taught the format of an episode, and to copy numbers, on correct demonstrations;
then, briefly, on an imperfect mix. The result calls its calculator about every second time and is right about one time
in ten: a policy with everything to gain from reinforcement learning, and the ability to gain it.

It is made once per config, recipe and library versions, in a directory of the cache whose name is a hash of those.
The directory appears by a rename when it is whole, and holds the hash of each of its files, so that weights are never
used with another tokenizer: that fails in silence, as a reward of zero.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from agentfly_lib.configs.model import TinyModelConfig
from agentfly_lib.errors import ModelError, ShardError
from agentfly_lib.models.demonstrations import (
    CORRECT,
    HELD_OUT_DATA_SEEDS,
    HELD_OUT_PROBLEMS,
    IMPERFECT,
    demonstrations,
    vocabulary_corpus,
)
from agentfly_lib.models.fingerprint import fingerprint_directory, hash_files
from agentfly_lib.models.tokenizer import END_OF_TURN, PADDING, build_tokenizer
from agentfly_lib.models.warm_start import WarmStage, encode, train
from agentfly_lib.refs import ModelRef
from agentfly_lib.store.atomic import read_json, sync_directory, write_json
from agentfly_lib.tools.calculator import calculator

if TYPE_CHECKING:
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

__all__ = ["Progress", "default_cache", "ensure_tiny", "network_config", "tiny_directory"]

Progress = Callable[[int, int, float], None]
"""Called after every supervised step with the steps done, the steps in all, and the loss in nats per token."""

_logger = logging.getLogger(__name__)
_RECIPE_VERSION = 2
"""Raise it whenever the same config gives another model: tokenizer, template, data, network or training."""
_BATCH_SIZE = 16
_CORRECT_RATE = 3e-3
_IMPERFECT_RATE = 1e-3
_CONTEXT_LENGTH = 2048
_MANIFEST = "warm_start.json"
_LOCK_TIMEOUT_SECONDS = 1800.0


def default_cache() -> Path:
    """Where models are kept unless another place is given: the user's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("agentfly") / "models"


def tiny_directory(config: TinyModelConfig, cache: Path | None = None) -> Path:
    """Where the small model of `config` is, or will be."""
    identity = {
        "config": config.model_dump(mode="json"),
        "recipe": _RECIPE_VERSION,
        "libraries": {name: version(name) for name in ("tokenizers", "torch", "transformers")},
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return (cache or default_cache()) / f"tiny-{digest[:16]}"


def ensure_tiny(config: TinyModelConfig, cache: Path | None = None, progress: Progress | None = None) -> ModelRef:
    """The small model of `config`, made now unless the cache has it. Two processes that ask at once make it once.

    Raises `ModelError` if the cache cannot be written, or if another process holds the lock for half an hour.
    """
    from filelock import FileLock, Timeout

    directory = tiny_directory(config, cache)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_suffix(".lock"), timeout=_LOCK_TIMEOUT_SECONDS):
            if not _intact(directory):
                _make(config, directory, progress)
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


def _make(config: TinyModelConfig, directory: Path, progress: Progress | None) -> None:
    prefix = f"{directory.name}-making-"
    for leftover in directory.parent.glob(f"{prefix}*"):  # of a killed process: the lock is ours
        shutil.rmtree(leftover)
    workspace = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    try:
        _write(config, workspace, progress)
        if directory.exists():
            shutil.rmtree(directory)
        workspace.chmod(0o755)
        workspace.rename(directory)
        sync_directory(directory.parent)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _write(config: TinyModelConfig, directory: Path, progress: Progress | None) -> None:
    """Make the model and write its directory, the manifest last."""
    from safetensors.torch import save_file

    tokenizer = build_tokenizer(vocabulary_corpus())
    with _one_thread():
        model = _network(config.seed, tokenizer)
        losses = _teach(model, tokenizer, config, progress)
    tokenizer.save_pretrained(directory)
    model.config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    # The output layer is the embedding; a safetensors file holds a tensor once.
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    write_json(
        directory / _MANIFEST,
        {
            "recipe": _RECIPE_VERSION,
            "config": config.model_dump(mode="json"),
            "losses": losses,
            "held_out": {"data_seeds": HELD_OUT_DATA_SEEDS, "problems_each": HELD_OUT_PROBLEMS},
            "files": hash_files(directory),
        },
    )


def network_config(tokenizer: Qwen2Tokenizer) -> Qwen2Config:
    """Shape of the network."""
    from transformers import Qwen2Config

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=_id(tokenizer, END_OF_TURN),
        pad_token_id=_id(tokenizer, PADDING),
        dtype="float32",
    )
    config.architectures = ["Qwen2ForCausalLM"]
    return config


def _network(seed: int, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    import torch
    from transformers import Qwen2ForCausalLM

    config = network_config(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).float()


def _teach(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, config: TinyModelConfig, progress: Progress | None
) -> dict[str, float]:
    """Both stages; returns the last loss of each."""
    stages = (
        ("correct", CORRECT, config.warm_steps, _CORRECT_RATE),
        ("imperfect", IMPERFECT, config.spoil_steps, _IMPERFECT_RATE),
    )
    total = config.warm_steps + config.spoil_steps
    losses: dict[str, float] = {}
    done = 0
    for index, (name, mix, steps, rate) in enumerate(stages):
        if not steps:
            continue
        lessons = demonstrations(seed=2 * config.seed + index + 1, count=steps * _BATCH_SIZE, mix=mix)
        losses[name] = train(
            model,
            encode([lesson.messages for lesson in lessons], tokenizer, [calculator.schema]),
            WarmStage(steps=steps, batch_size=_BATCH_SIZE, learning_rate=rate),
            pad_id=_id(tokenizer, PADDING),
            on_step=_report(progress, done, total),
        )
        done += steps
    return losses


def _report(progress: Progress | None, before: int, total: int) -> Callable[[int, float], None] | None:
    if progress is None:
        return None
    return lambda step, loss: progress(before + step, total, loss)


def _id(tokenizer: Qwen2Tokenizer, token: str) -> int:
    return tokenizer.get_vocab()[token]


@contextmanager
def _one_thread() -> Iterator[None]:
    """A network this small gains nothing from a second thread, and loses much on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
