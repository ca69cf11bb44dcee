"""Prompts with pictures for vLLM: their ids go in as they are, with the pixels that our own reader makes.

vLLM would expand placeholders itself, from text. Here they are expanded already, by whoever rendered the prompt; each
run of them is matched with its picture's features, and what vLLM used is compared with what was given when it answers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from agentfly_lib.chat.image_reader import ImageReader

if TYPE_CHECKING:
    from vllm.inputs import EngineInput
    from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["engine_prompt", "images_alone"]


def engine_prompt(
    engine: LLMEngine,
    reader: ImageReader | None,
    token_ids: Sequence[int],
    pictures: Sequence[bytes],
    *,
    cache_salt: str | None = None,
) -> EngineInput:
    """A prompt of expanded ids, and encoded pictures in the order of their placeholders.

    Raises `ValueError` for pictures of a model that does not see, or that do not fit their placeholders.
    """
    from vllm.inputs.engine import mm_input, tokens_input

    if not pictures:
        return tokens_input(list(token_ids), cache_salt=cache_salt)
    if reader is None:
        raise ValueError("the prompt has pictures, but the model is not a vision model")

    import torch
    from transformers import BatchFeature
    from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

    placed = reader.placed(token_ids, pictures)
    inputs = BatchFeature(
        {
            "pixel_values": torch.cat([seen.pixel_values for _, seen in placed]),
            "image_grid_thw": torch.tensor([seen.grid for _, seen in placed]),
        }
    )
    fields = engine.renderer.get_mm_processor()._get_mm_fields_config(inputs, {})
    return mm_input(
        list(token_ids),
        MultiModalKwargsItems.from_hf_inputs(inputs, fields),  # pyright: ignore[reportArgumentType] - read alone
        {"image": [sha256(picture).hexdigest() for picture in pictures]},
        {"image": [PlaceholderRange(offset=place, length=reader.tokens_of(seen.grid)) for place, seen in placed]},
        cache_salt=cache_salt,
    )


def images_alone(reader: ImageReader) -> None:
    """Lets vLLM do with the half of a model's processor that reads pictures. Call in its process, before it is made.

    All that vLLM wants of it then is how large a picture can be. The other half, for videos, needs torchvision, of
    which there is no build that goes with a CPU build of torch: without it, models of the first two families are made
    known here, whose modules want no more of it than one function, which its other half has too.
    """
    from transformers import ProcessorMixin
    from vllm.multimodal.processing import InputProcessingContext

    def half(self: InputProcessingContext, kind: Any = None, /, **_: Any) -> Any:
        del self
        first = (kind[0] if isinstance(kind, tuple) else kind) or ProcessorMixin
        made = first.__new__(first)
        made.image_processor = made.video_processor = reader.processor
        return made

    InputProcessingContext.get_hf_processor = half  # type: ignore[method-assign]
    if find_spec("torchvision") is None:
        _make_known()


def _make_known() -> None:
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

    sys.modules.setdefault("transformers.models.qwen2_vl.image_processing_qwen2_vl", image_processing_pil_qwen2_vl)

    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
    from vllm.model_executor.models.qwen2_vl import Qwen2VLForConditionalGeneration

    for model in (Qwen2VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration):
        ModelRegistry.register_model(model.__name__, model)
