"""Model directories without weights that see: a tokenizer, a template, an image processor, a config.

And the processor that the model's own authors use, which says what a prompt with pictures is. Its class would want a
video processor, which needs torchvision; nothing else about it is changed.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor
from transformers.processing_utils import ProcessorMixin

__all__ = ["FAMILIES", "SEQUENCE", "model_directory", "png", "processor_of"]

_CHAT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
_QWEN = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_IDEFICS = [
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row + 1}_col_{column + 1}>" for row in range(6) for column in range(6)),
]
_CORPUS = ["What is in the picture? The square is red.", "user assistant system tool Look at 12 + 34\n\n\n"]
SEQUENCE = 4
"""Features of a tile in the Idefics family."""

# Written for these tests in the families' manner: pictures where they stand, tool results in a user's turn.
_QWEN_TEMPLATE = """\
{%- macro content(c) -%}{%- if c is string -%}{{- c -}}{%- else -%}{%- for part in c -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}{%- endmacro -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + content(m.content) + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + content(m.content) + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
_IDEFICS_TEMPLATE = """\
{%- for m in messages -%}{{- '<|im_start|>' + m.role + ': ' -}}
{%- if m.content is string -%}{{- m.content -}}{%- else -%}{%- for part in m.content -%}
{%- if part.type == 'image' -%}<image>{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}{{- '<end_of_utterance>\\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant: ' -}}{%- endif -%}"""

FAMILIES = {
    "qwen2_vl": Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, min_pixels=16 * 16, max_pixels=64 * 64),
    "qwen2_5_vl": Qwen2VLImageProcessorPil(patch_size=7, merge_size=2, min_pixels=28 * 28, max_pixels=84 * 84),
    "qwen3_vl": Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, min_pixels=32 * 32, max_pixels=128 * 128),
    "idefics3": Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
    "smolvlm": SmolVLMImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32}),
}


class _Qwen2(Qwen2VLProcessor):
    def __init__(self, image_processor=None, tokenizer=None, chat_template=None) -> None:
        _image_only(self, image_processor, tokenizer, chat_template)


class _Qwen3(Qwen3VLProcessor):
    def __init__(self, image_processor=None, tokenizer=None, chat_template=None) -> None:
        _image_only(self, image_processor, tokenizer, chat_template)


class _Smol(SmolVLMProcessor):
    def __init__(self, image_processor=None, tokenizer=None, chat_template=None) -> None:
        self.fake_image_token, self.image_token = "<fake_token_around_image>", "<image>"
        self.global_image_token, self.video_token = "<global-img>", "<video>"
        self.end_of_utterance_token, self.image_seq_len = "<end_of_utterance>", SEQUENCE
        self.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    apply_chat_template = ProcessorMixin.apply_chat_template  # that of the class asks the video processor


def _image_only(processor: Any, image_processor: Any, tokenizer: Any, chat_template: Any) -> None:
    processor.image_token, processor.video_token = "<|image_pad|>", "<|video_pad|>"
    processor.image_token_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    processor.video_token_id = tokenizer.convert_tokens_to_ids("<|video_pad|>")
    ProcessorMixin.__init__(processor, image_processor, tokenizer, chat_template=chat_template)


def model_directory(kind: str, path: Path) -> Path:
    """Everything of a model of this kind but its weights."""
    tokenizer = _tokenizer(kind)
    tokenizer.save_pretrained(path)
    FAMILIES[kind].save_pretrained(path)
    ids = tokenizer.convert_tokens_to_ids
    if kind.startswith("qwen"):
        names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
        names |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
        config: dict[str, Any] = {f"{name}_token_id": ids(token) for name, token in names.items()}
        config["vision_config"] = {"patch_size": FAMILIES[kind].patch_size}
    else:
        config = {"image_token_id": ids("<image>"), "scale_factor": 2}
        config["vision_config"] = {"image_size": 32, "patch_size": 8}  # (32 / 8)^2 / 2^2 = SEQUENCE
    (path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    return path


def processor_of(kind: str) -> Any:
    """The family's own processor."""
    tokenizer, images = _tokenizer(kind), FAMILIES[kind]
    if kind == "idefics3":
        return Idefics3Processor(images, tokenizer, image_seq_len=SEQUENCE, chat_template=tokenizer.chat_template)
    maker = {"qwen3_vl": _Qwen3, "smolvlm": _Smol}.get(kind, _Qwen2)
    return maker(images, tokenizer, chat_template=tokenizer.chat_template)


def png(width: int, height: int, colour: str = "red") -> bytes:
    """A picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def _tokenizer(kind: str) -> PreTrainedTokenizerFast:
    special = [*_CHAT, *(_QWEN if kind.startswith("qwen") else _IDEFICS)]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(_CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in _TAGS])
    end = "<|im_end|>" if kind.startswith("qwen") else "<end_of_utterance>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, pad_token="<|endoftext|>")
    tokenizer.chat_template = _QWEN_TEMPLATE if kind.startswith("qwen") else _IDEFICS_TEMPLATE
    return tokenizer
