"""A model directory without a model: a tokenizer with a chat template, which is all that an agent needs of it."""

from __future__ import annotations

from pathlib import Path

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
