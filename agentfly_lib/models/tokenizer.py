"""The tokenizer of the small model: byte-level BPE, one token per digit, and a chat template in the Hermes tool style.

It is a `Qwen2Tokenizer`, with that family's way of splitting text, and has to be: whatever a Qwen2 model directory says
about its tokenizer, transformers loads this class, and another way of splitting would be replaced without a word.
Digits are single tokens in it, which suits a model this small: it learns to copy numbers digit by digit, and does not
learn it from longer tokens. The fixed strings of a tool call and of a boxed answer are single tokens too, so that a
call costs no more tokens than it has decisions. Only `<|...|>` tokens are special to the library (dropped by
`skip_special_tokens`); the others are ordinary text, so decoding a sampled call gives its tags back.

The template lists tools by name and argument names only, which keeps the prompt of an episode short: 11 tokens for one
tool of one argument. Tool results are a user turn; several in a row share it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

__all__ = [
    "CHAT_TEMPLATE",
    "END_OF_TURN",
    "FIXED_STRINGS",
    "PADDING",
    "SPECIAL_TOKENS",
    "VISION_TEMPLATE",
    "VISION_TOKENS",
    "VOCABULARY_SIZE",
    "build_tokenizer",
]

VOCABULARY_SIZE = 640
END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
SPECIAL_TOKENS = (
    PADDING,
    "<|im_start|>",
    END_OF_TURN,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
)
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""What a model that sees has besides."""
FIXED_STRINGS = ('{"name": "', '", "arguments": {"', '": "', '"}}', " \\boxed{")
"""Single tokens that are not special: a call is these around a name, an argument name and a value."""

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- elif content is iterable -%}
    {%- for part in content -%}{{- part if part is string else part.text -}}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set start = 0 -%}
{%- set system = '' -%}
{%- if messages and messages[0].role == 'system' -%}
  {%- set start = 1 -%}
  {%- set system = text(messages[0].content) -%}
{%- endif -%}
{%- if system or tools -%}
  {{- '<|im_start|>system\\n' + system -}}
  {%- if tools -%}
    {{- ('\\n\\n' if system else '') + '<tools>' -}}
    {%- for tool in tools -%}
      {%- set function = tool.function if tool.function is defined else tool -%}
      {{- '\\n' + function.name + '(' + (function.parameters.properties | default({})) | join(', ') + ')' -}}
    {%- endfor -%}
    {{- '\\n</tools>' -}}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages[start:] -%}
  {%- if message.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- generation -%}
      {%- set said = text(message.content) -%}
      {{- said -}}
      {%- for call in message.tool_calls or [] -%}
        {%- set function = call.function if call.function is defined else call -%}
        {%- set arguments = function.arguments -%}
        {{- '\\n' if said or not loop.first else '' -}}
        {{- '<tool_call>\\n{"name": ' + function.name | tojson + ', "arguments": ' -}}
        {{- (arguments if arguments is string else arguments | tojson) + '}\\n</tool_call>' -}}
      {%- endfor -%}
      {{- '<|im_end|>' -}}
    {%- endgeneration -%}
    {{- '\\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

VISION_TEMPLATE = CHAT_TEMPLATE.replace(
    "{{- part if part is string else part.text -}}",
    """
      {%- if part is string -%}{{- part -}}
      {%- elif part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
      {%- else -%}{{- part.text -}}
      {%- endif -%}
    """,
)
"""The same for messages with pictures, each of which stands as one placeholder between its two marks."""


def build_tokenizer(
    corpus: Iterable[str],
    *,
    vocabulary_size: int = VOCABULARY_SIZE,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    fixed_strings: Sequence[str] = FIXED_STRINGS,
    template: str = CHAT_TEMPLATE,
) -> Qwen2Tokenizer:
    """Train the tokenizer on `corpus`, which should hold every word of the task; the same corpus gives the same ids.

    Any text can be encoded whatever the corpus was, since all 256 bytes are tokens. `<|im_end|>` ends a turn (eos),
    `<|endoftext|>` pads.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AddedToken, Qwen2Tokenizer

    family = Qwen2Tokenizer(vocab={PADDING: 0}, merges=[]).backend_tokenizer
    trained = Tokenizer(models.BPE())
    trained.normalizer = family.normalizer
    trained.pre_tokenizer = family.pre_tokenizer
    trained.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=[*special_tokens, *fixed_strings],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=bpe["vocab"],
        merges=[tuple(merge) for merge in bpe["merges"]],  # pyright: ignore[reportArgumentType]
        unk_token=PADDING,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
    )
    for token in (*special_tokens, *fixed_strings):
        tokenizer.add_tokens(AddedToken(token, special=token.startswith("<|"), normalized=False))
    tokenizer.chat_template = template
    return tokenizer
