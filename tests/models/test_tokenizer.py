"""The small model's tokenizer and template: what is one token, what survives saving, how conversations are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.models.demonstrations import vocabulary_corpus
from agentfly_lib.models.tokenizer import SPECIAL_TOKENS, build_tokenizer
from agentfly_lib.tools.calculator import calculator

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "7 * 5"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(vocabulary_corpus())


def render(tokenizer, messages, *, tools=True, add_generation_prompt=False) -> str:
    return tokenizer.apply_chat_template(
        messages,
        tools=[calculator.schema] if tools else None,
        add_generation_prompt=add_generation_prompt,
        tokenize=False,
    )


def test_special_tokens_and_digits_are_single_tokens(tokenizer):
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in (*SPECIAL_TOKENS, *"0123456789")]

    assert all(len(token) == 1 for token in ids)
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_it_has_640_entries(tokenizer):
    assert len(tokenizer) == 640
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


def test_a_call_costs_as_many_tokens_as_it_has_decisions(tokenizer):
    assert [tokenizer.decode(token) for token in tokenizer(CALL).input_ids] == [
        "<tool_call>",
        "\n",
        '{"name": "',
        "calculator",
        '", "arguments": {"',
        "expression",
        '": "',
        "7",
        " *",
        " ",
        "5",
        '"}}',
        "\n",
        "</tool_call>",
    ]


def test_the_prompt_s_prefix_is_short(tokenizer):
    text = render(tokenizer, [{"role": "user", "content": "Hi"}])
    prefix = text[: text.index("<|im_start|>user")]

    assert prefix == "<|im_start|>system\n<tools>\ncalculator(expression)\n</tools><|im_end|>\n"
    assert len(tokenizer(prefix).input_ids) <= 12


def test_a_whole_conversation(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Two things."},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "35", "tool_call_id": "1"},
        {"role": "tool", "content": "error", "tool_call_id": "2"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": [{"type": "text", "text": "Thank "}, {"type": "text", "text": "you."}]},
    ]

    assert render(tokenizer, messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.\n\n<tools>\ncalculator(expression)\n</tools><|im_end|>\n"
        "<|im_start|>user\nTwo things.<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n35\n</tool_response>\n<tool_response>\nerror\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nDone.<|im_end|>\n"
        "<|im_start|>user\nThank you.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_system_and_tools_there_is_no_system_turn(tokenizer):
    assert render(tokenizer, [{"role": "user", "content": "Hi"}], tools=False) == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("arguments", [{"expression": "7 * 5"}, '{"expression": "7 * 5"}'])
def test_structured_calls_are_written_as_the_model_would_write_them(tokenizer, content, arguments):
    call = {"id": "1", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
    structured = {"role": "assistant", "content": content, "tool_calls": [call]}

    assert render(tokenizer, [structured]) == render(tokenizer, [{"role": "assistant", "content": CALL}])


def test_the_generation_markers_cover_what_the_assistant_says_and_its_end_of_turn(tokenizer):
    messages = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "35"},
        {"role": "assistant", "content": "The answer is \\boxed{35}"},
    ]

    encoded = tokenizer.apply_chat_template(
        messages, tools=[calculator.schema], return_dict=True, return_assistant_tokens_mask=True
    )

    ids = [token for token, said in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if said]
    assert tokenizer.decode(ids) == f"{CALL}<|im_end|>The answer is \\boxed{{35}}<|im_end|>"


def test_decoding_drops_only_the_control_tokens(tokenizer):
    ids = tokenizer(f"{CALL}<|im_end|>").input_ids

    assert tokenizer.decode(ids) == f"{CALL}<|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == CALL


@given(text=st.text(max_size=60))
def test_any_text_survives(tokenizer, text: str):
    import unicodedata

    normal = unicodedata.normalize("NFC", text)

    assert tokenizer.decode(tokenizer(normal).input_ids, clean_up_tokenization_spaces=False) == normal


def test_the_same_corpus_gives_the_same_ids(tokenizer):
    assert build_tokenizer(vocabulary_corpus()).get_vocab() == tokenizer.get_vocab()


def test_loading_it_beside_a_qwen2_config_gives_the_same_tokenizer(tokenizer, tmp_path: Path):
    """transformers chooses the class by the model's type, whatever the tokenizer's own config says."""
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))

    loaded = AutoTokenizer.from_pretrained(tmp_path)

    text = f"Tom has 66 cards, é 日本 🙂 {CALL}<|im_end|>\n  x\r\n<|endoftext|> \\boxed{{35}}"
    assert loaded(text).input_ids == tokenizer(text).input_ids
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    assert (loaded.eos_token_id, loaded.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert loaded.decode(loaded(CALL).input_ids) == CALL


@pytest.mark.stack
@pytest.mark.slow
def test_vllm_loads_the_same_tokenizer(tokenizer, tmp_path: Path):
    from vllm.tokenizers import get_tokenizer

    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))

    loaded = get_tokenizer(str(tmp_path))

    assert loaded.encode(CALL) == tokenizer(CALL).input_ids
