"""The small model that sees: a third of a million parameters of Qwen2-VL's architecture, made here in half a minute.

Its tower reads pictures of 32 to 64 pixels in patches of 8. A supervised warm start on an imperfect mix of episodes
teaches it the format, to look, and a little of what it sees; about one sampled answer in three is right afterwards.

The directory holds an image processor and no video processor: pictures need nothing but Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentfly_lib.chat.image_reader import ImageReader
from agentfly_lib.configs.model import TinyVisionModelConfig
from agentfly_lib.models.made import Progress, ensure_made, one_thread, recipe_directory, save_network, seal
from agentfly_lib.models.tokenizer import (
    END_OF_TURN,
    PADDING,
    SPECIAL_TOKENS,
    VISION_TEMPLATE,
    VISION_TOKENS,
    build_tokenizer,
)
from agentfly_lib.models.vision_demonstrations import (
    HELD_OUT_DATA_SEEDS,
    HELD_OUT_PROBLEMS,
    Demonstration,
    demonstrations,
    vocabulary_corpus,
)
from agentfly_lib.models.warm_start import Encoded, WarmStage, encode, train
from agentfly_lib.refs import ModelRef
from agentfly_lib.tools.look import look

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2Tokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

__all__ = [
    "build_vision_tokenizer",
    "encode_demonstrations",
    "ensure_tiny_vision",
    "image_processor",
    "vision_network_config",
]

_RECIPE_VERSION = 2
"""Raise it whenever the same config gives another model: tokenizer, template, data, network or training."""
_BATCH_SIZE = 16
_RATE = 2e-3
_CONTEXT_LENGTH = 2048
_VOCABULARY_SIZE = 512
_PATCH = 8
_MERGE = 2
_SMALLEST, _LARGEST = 32, 64
"""Pixels of the sides of a square picture."""
_FIXED_STRINGS = ('{"name": "', '", "arguments": {}}')


def ensure_tiny_vision(
    config: TinyVisionModelConfig, cache: Path | None = None, progress: Progress | None = None
) -> ModelRef:
    """The small model that sees, made now unless the cache has it; raises as `ensure_made`."""
    identity = {"config": config.model_dump(mode="json"), "recipe": _RECIPE_VERSION}
    directory = recipe_directory("tiny-vision", identity, cache)
    return ensure_made(directory, lambda place: _write(config, place, progress))


def build_vision_tokenizer() -> Qwen2Tokenizer:
    """Its tokenizer; the same every time."""
    return build_tokenizer(
        vocabulary_corpus(),
        vocabulary_size=_VOCABULARY_SIZE,
        special_tokens=(*SPECIAL_TOKENS, *VISION_TOKENS),
        fixed_strings=_FIXED_STRINGS,
        template=VISION_TEMPLATE,
    )


def vision_network_config(tokenizer: Qwen2Tokenizer) -> Qwen2VLConfig:
    """Shape of the network."""
    from transformers import Qwen2VLConfig

    ids, width, heads = tokenizer.get_vocab(), 96, 3
    start, end, image, video = (ids[token] for token in VISION_TOKENS)
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": 1,
            "max_position_embeddings": _CONTEXT_LENGTH,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
            "bos_token_id": None,
            "eos_token_id": ids[END_OF_TURN],
            "pad_token_id": ids[PADDING],
            "initializer_range": 0.05,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 1,
            "embed_dim": 64,
            "hidden_size": width,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": _PATCH,
            "spatial_merge_size": _MERGE,
            "temporal_patch_size": 2,
            "initializer_range": 0.05,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        dtype="float32",
    )
    config.architectures = ["Qwen2VLForConditionalGeneration"]
    return config


def encode_demonstrations(
    lessons: Sequence[Demonstration], tokenizer: Qwen2Tokenizer, reader: ImageReader
) -> list[Encoded]:
    """Token ids and loss masks, placeholders expanded, each with its picture."""
    plain = encode([lesson.messages for lesson in lessons], tokenizer, [look.schema])
    return [_with_picture(episode, lesson.picture, reader) for episode, lesson in zip(plain, lessons, strict=True)]


def _with_picture(episode: Encoded, picture: bytes | None, reader: ImageReader) -> Encoded:
    if picture is None:
        return episode
    features = reader.tokens_of(reader.read(picture).grid)
    repeats = np.where(episode.token_ids == reader.image_token_id, features, 1)
    return Encoded(
        token_ids=np.repeat(episode.token_ids, repeats),
        loss_mask=np.repeat(episode.loss_mask, repeats),
        pictures=(picture,),
    )


def _write(config: TinyVisionModelConfig, directory: Path, progress: Progress | None) -> None:
    """Make the model and write its directory, the manifest last."""
    tokenizer = build_vision_tokenizer()
    image_processor().save_pretrained(directory)
    with one_thread():
        model = _network(config.seed, tokenizer)
        save_network(model, tokenizer, directory)
        reader = ImageReader.of(directory)
        lessons = demonstrations(seed=config.seed, count=config.warm_steps * _BATCH_SIZE)
        loss = train(
            model,
            encode_demonstrations(lessons, tokenizer, reader),
            WarmStage(steps=config.warm_steps, batch_size=_BATCH_SIZE, learning_rate=_RATE, warmup_steps=15),
            pad_id=tokenizer.get_vocab()[PADDING],
            on_step=None if progress is None else lambda step, loss: progress(step, config.warm_steps, loss),
            see=lambda ids, episodes: _seen(model, reader, ids, episodes),
        )
    save_network(model, tokenizer, directory)
    seal(
        directory,
        {
            "recipe": _RECIPE_VERSION,
            "config": config.model_dump(mode="json"),
            "losses": {"imperfect": loss},
            "held_out": {"data_seeds": HELD_OUT_DATA_SEEDS, "problems_each": HELD_OUT_PROBLEMS},
        },
    )


def _network(seed: int, tokenizer: Qwen2Tokenizer) -> Qwen2VLForConditionalGeneration:
    import torch
    from transformers import Qwen2VLForConditionalGeneration

    config = vision_network_config(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2VLForConditionalGeneration(config).float()


def _seen(
    model: Qwen2VLForConditionalGeneration, reader: ImageReader, token_ids: torch.Tensor, episodes: Sequence[Encoded]
) -> dict[str, torch.Tensor]:
    """Pixels, grids and positions of a batch; nothing where no episode has a picture."""
    import torch

    seen = [reader.read(picture) for episode in episodes for picture in episode.pictures]
    if not seen:
        return {}
    grids = torch.tensor([inputs.grid for inputs in seen])
    kinds = (token_ids == reader.image_token_id).int()
    rope_index: Any = model.model.get_rope_index  # its annotations name tensors of the old kind
    positions, _ = rope_index(token_ids, kinds, image_grid_thw=grids)
    return {
        "pixel_values": torch.cat([inputs.pixel_values for inputs in seen]),
        "image_grid_thw": grids,
        "position_ids": positions,
    }


def image_processor() -> Any:
    """Its image processor, which needs no torchvision."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(
        patch_size=_PATCH,
        temporal_patch_size=2,
        merge_size=_MERGE,
        min_pixels=_SMALLEST**2,
        max_pixels=_LARGEST**2,
    )
