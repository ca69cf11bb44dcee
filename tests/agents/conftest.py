"""A model directory without a model: a tokenizer with a chat template, which is all that an agent needs of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentfly_lib.chat.templates import shipped_template


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        ["What is the result of 1 + 1?"], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    )
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = shipped_template("chatml")
    path = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def random_model(model_path, tmp_path_factory) -> Path:
    """The tokenizer's directory, with a very small model in it."""
    torch = pytest.importorskip("torch")
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    path = tmp_path_factory.mktemp("random") / "model"
    shutil.copytree(model_path, path)
    config = Qwen2Config(
        vocab_size=len(AutoTokenizer.from_pretrained(path)),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def assert_token_exact():
    """What the engine was asked is what the segments hold, and exactly what it said has mask 1."""

    def check(trajectory, requests) -> None:
        turns = [(segment, turn) for segment in trajectory.segments for turn in segment.turns if turn.sampled]
        assert len(turns) == len(requests)
        for (segment, turn), request in zip(turns, requests, strict=True):
            assert list(request.token_ids) == segment.token_ids[: turn.start].tolist()
        for segment in trajectory.segments:
            sampled = np.zeros(len(segment), bool)
            for turn in segment.turns:
                sampled[turn.start : turn.end] = turn.sampled
            np.testing.assert_array_equal(segment.loss_mask, sampled)
            np.testing.assert_array_equal(np.isnan(segment.logprobs), ~sampled)

    return check
