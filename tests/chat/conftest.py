"""Small tokenizers of the common kind (byte-level BPE): trained ones under four templates, and one per family."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentfly_lib.chat import ChatFormat

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
CORPUS = (
    "What is the result of 12 + 34? The answer is 46. Tom has 3 apples and buys 8 more.",
    'system user assistant tool {"name": "calculator", "arguments": {"expression": "12 + 34"}}',
    "Ein Test mit Umlauten: äöü. 你好，世界。今天天气很好。 emoji: 👩‍👩‍👧 🎉 é",
)

QWEN25 = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- else %}{{- 'You help.' }}{%- endif %}
{{- '\\n<tools>' }}{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{%- generation %}{{- m.content + '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN3 = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- if tools %}{{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set text = m.content if loop.index0 > ns.last else m.content.split('</think>')[-1].lstrip('\\n') %}
{{- '<|im_start|>assistant\\n' + text + '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}
{%- set role = 'ipython' if m.role == 'tool' else m.role %}
{{- '<|header|>' + role + '<|/header|>\\n\\n' + m.content | trim + '<|eot|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\\n\\n' }}{%- endif %}"""

BOS_CHATML = """\
{{- bos_token }}{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

TEMPLATES = {"qwen2.5": QWEN25, "qwen3": QWEN3, "llama3": LLAMA3, "bos": BOS_CHATML}


@cache
def build_tokenizer(family: str | None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin|>",
        eos_token="<|eot|>" if family == "llama3" else "<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = TEMPLATES.get(family or "")
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str | None], PreTrainedTokenizerFast]:
    """A tokenizer with the chat template of a family; None for one without a template."""
    return build_tokenizer


@pytest.fixture(scope="session")
def format_of() -> Callable[[str], ChatFormat]:
    """The chat format of a family."""

    @cache
    def build(family: str) -> ChatFormat:
        return ChatFormat.from_tokenizer(build_tokenizer(family))

    return build


CONTROL = {
    "gpt-oss": "<|return|> <|call|> <|end|> <|start|> <|message|> <|channel|> <|constrain|>",
    "deepseek-r1": "<｜end▁of▁sentence｜> <｜begin▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> "
    "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁outputs▁begin｜> "
    "<｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>",
    "llama-3": "<|eot_id|> <|eom_id|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|python_tag|>",
    "mistral": "</s> <s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] "
    "[TOOL_CALLS] [TOOL_RESULTS] [TOOL_CONTENT] [/TOOL_RESULTS]",
    "gemma": "<end_of_turn> <bos> <start_of_turn>",
    "phi-4": "<|im_end|> <|im_start|> <|im_sep|>",
    "glm-4": "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>",
}
"""Special tokens of each family's vocabularies, the end of sequence first; ChatML's where nothing else is said."""
CHATML_CONTROL = "<|im_end|> <|im_start|> <|endoftext|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"
BOS = {"deepseek-r1": "<｜begin▁of▁sentence｜>", "llama-3": "<|begin_of_text|>", "mistral": "<s>", "gemma": "<bos>"}


@cache
def build_family_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Bytes and the family's control tokens: without merges, every way to split a text is the canonical one."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False))
    control = CONTROL.get(family, CHATML_CONTROL).split()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=control[0], bos_token=BOS.get(family))


@pytest.fixture(scope="session")
def family_tokenizer() -> Callable[[str], PreTrainedTokenizerFast]:
    """A tokenizer without a template, with the control tokens of a family."""
    return build_family_tokenizer


@pytest.fixture(scope="session")
def shipped_format() -> Callable[..., ChatFormat]:
    """The chat format of a family's shipped template."""

    @cache
    def build(family: str, thinking: bool | None = None) -> ChatFormat:
        return ChatFormat.from_tokenizer(build_family_tokenizer(family), template=family, thinking=thinking)

    return build
