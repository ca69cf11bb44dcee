"""The published shape of Qwen2.5-3B, and recipes with small changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentfly_lib.configs import load_config

QWEN_3B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


QWEN_VL_3B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "text_config": QWEN_3B | {"model_type": "qwen2_5_vl_text"},
    "vision_config": {
        "model_type": "qwen2_5_vl",
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
    "tie_word_embeddings": True,
}


@pytest.fixture
def qwen_vl_3b(tmp_path):
    """The published shape of Qwen2.5-VL-3B."""
    return _model_folder(tmp_path / "qwen-vl", QWEN_VL_3B)


@pytest.fixture
def qwen_3b(tmp_path):
    """A folder with nothing but its `config.json`."""
    return _model_folder(tmp_path / "qwen", QWEN_3B)


def _model_folder(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def recipe():
    """`recipe(name, "key=value", ...)`."""
    return lambda name, *changes: load_config(Path(f"recipes/{name}.toml"), changes)
