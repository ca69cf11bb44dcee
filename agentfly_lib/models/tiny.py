"""The small model that makes a laptop demo possible: half a million parameters, made on this machine in under a minute.

A Qwen2 network and its tokenizer are taught the format of an episode, and to copy numbers, on correct demonstrations;
then, briefly, on an imperfect mix. The result calls its calculator about every second time and is right about one time
in ten: a policy with everything to gain from reinforcement learning, and the ability to gain it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agentfly_lib.configs.model import TinyModelConfig
from agentfly_lib.models.demonstrations import (
    CORRECT,
    HELD_OUT_DATA_SEEDS,
    HELD_OUT_PROBLEMS,
    IMPERFECT,
    demonstrations,
    vocabulary_corpus,
)
from agentfly_lib.models.made import Progress, ensure_made, one_thread, recipe_directory, save_network, seal
from agentfly_lib.models.tokenizer import END_OF_TURN, PADDING, build_tokenizer
from agentfly_lib.models.warm_start import WarmStage, encode, train
from agentfly_lib.refs import ModelRef
from agentfly_lib.tools.calculator import calculator

if TYPE_CHECKING:
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

__all__ = ["ensure_tiny", "network_config", "tiny_directory"]

_RECIPE_VERSION = 2
"""Raise it whenever the same config gives another model: tokenizer, template, data, network or training."""
_BATCH_SIZE = 16
_CORRECT_RATE = 3e-3
_IMPERFECT_RATE = 1e-3
_CONTEXT_LENGTH = 2048


def tiny_directory(config: TinyModelConfig, cache: Path | None = None) -> Path:
    """Where the small model of `config` is, or will be."""
    return recipe_directory("tiny", {"config": config.model_dump(mode="json"), "recipe": _RECIPE_VERSION}, cache)


def ensure_tiny(config: TinyModelConfig, cache: Path | None = None, progress: Progress | None = None) -> ModelRef:
    """The small model of `config`, made now unless the cache has it; raises as `ensure_made`."""
    return ensure_made(tiny_directory(config, cache), lambda directory: _write(config, directory, progress))


def _write(config: TinyModelConfig, directory: Path, progress: Progress | None) -> None:
    """Make the model and write its directory, the manifest last."""
    tokenizer = build_tokenizer(vocabulary_corpus())
    with one_thread():
        model = _network(config.seed, tokenizer)
        losses = _teach(model, tokenizer, config, progress)
    save_network(model, tokenizer, directory)
    seal(
        directory,
        {
            "recipe": _RECIPE_VERSION,
            "config": config.model_dump(mode="json"),
            "losses": losses,
            "held_out": {"data_seeds": HELD_OUT_DATA_SEEDS, "problems_each": HELD_OUT_PROBLEMS},
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
