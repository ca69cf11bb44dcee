"""From encoded pictures to what a model's vision tower reads, by the model's own image processor.

Engines and the learner read pictures here, so that the trained policy sees, bit for bit, what the sampling one saw.
It is for models whose processor makes a grid of patches of each picture (`image_grid_thw`: Qwen2-VL, Qwen2.5-VL,
Qwen3-VL and their relatives).
"""

from __future__ import annotations

import io
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentfly_lib.errors import ModelError, first_line

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ImageReader", "PixelInputs", "reads", "sees", "vision_token_ids"]

_VISION_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_REMEMBERED_BYTES = 256 * 2**20


def sees(model: Path) -> bool:
    """Whether the model in this directory has a vision tower and an image processor."""
    try:
        return bool(_config(model).get("vision_config")) and _has_processor(model)
    except ModelError:  # whoever loads it says what is wrong
        return False


def reads(model: Path) -> bool:
    """Whether it sees, and its pictures can be read here: its processor makes a grid of patches.

    Any other model that sees is served and trained as one that does not.
    """
    return sees(model) and isinstance(_processor(model).get("merge_size"), int)


def vision_token_ids(model: Path) -> tuple[int, ...]:
    """Ids that stand for pictures, of the model in a directory; a policy must never sample them. Empty without any.

    A sampled placeholder would claim a picture that is not there: positions and features would no longer fit.
    """
    if not sees(model):
        return ()
    config = _config(model)
    ids = (config.get(name) for name in _VISION_TOKENS)
    return tuple(sorted({token for token in ids if isinstance(token, int) and token >= 0}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelInputs:
    """One picture, as the tower reads it."""

    pixel_values: Tensor  # [patches, values of a patch] float32
    grid: tuple[int, int, int]
    """Patches: frames, rows, columns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageReader:
    """The image processor of one model. Safe to use from many threads, which read one picture at a time."""

    image_token_id: int
    """The placeholder; a picture has as many of them as the model has features for it."""
    merge: int
    """Patches of a feature, along each side."""
    processor: Any = field(repr=False)
    _remembered: OrderedDict[bytes, PixelInputs] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, model: Path) -> ImageReader:
        """Of a model directory. Raises `ModelError` if it holds no image processor of a kind that is known."""
        from transformers import AutoImageProcessor

        config = _config(model)
        token, vision = config.get("image_token_id"), config.get("vision_config")
        if not isinstance(token, int) or not isinstance(vision, Mapping):
            raise ModelError(f"{model / 'config.json'} does not describe a vision model")
        try:
            processor = AutoImageProcessor.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError(f"cannot load an image processor from {model}: {first_line(error)}") from error
        merge = getattr(processor, "merge_size", None)
        if not isinstance(merge, int):
            raise ModelError(
                f"{type(processor).__name__} of {model} returns no grid of patches (image_grid_thw); models of the "
                "Qwen2-VL family and its relatives can be used"
            )
        return cls(image_token_id=token, merge=merge, processor=processor)

    def read(self, picture: bytes) -> PixelInputs:
        """An encoded picture as the tower reads it. Raises `ValueError` for bytes that are no picture."""
        key = sha256(picture).digest()
        with self._lock:  # around the reading too: the chains of a group ask for the same picture at the same time
            if (known := self._remembered.get(key)) is not None:
                self._remembered.move_to_end(key)
                return known
            made = self._remembered[key] = self._read(picture)
            kept = sum(inputs.pixel_values.nbytes for inputs in self._remembered.values())
            while kept > _REMEMBERED_BYTES and len(self._remembered) > 1:
                kept -= self._remembered.popitem(last=False)[1].pixel_values.nbytes
            return made

    def tokens_of(self, grid: Sequence[int]) -> int:
        """Features, and so placeholders, of a picture of this grid."""
        frames, rows, columns = grid
        return frames * rows * columns // self.merge**2

    def placed(self, token_ids: Sequence[int], pictures: Sequence[bytes]) -> list[tuple[int, PixelInputs]]:
        """Each picture with the place of its first placeholder, of a prompt in which they are expanded.

        Raises `ValueError` if placeholders and features do not fit.
        """
        places = [place for place, token in enumerate(token_ids) if token == self.image_token_id]
        found: list[tuple[int, PixelInputs]] = []
        for picture in pictures:
            inputs = self.read(picture)
            features = self.tokens_of(inputs.grid)
            own, places = places[:features], places[features:]
            if len(own) < features or own[-1] - own[0] != features - 1:
                raise ValueError(
                    f"picture {len(found) + 1} has {features} features, but not as many consecutive placeholders"
                )
            found.append((own[0], inputs))
        if places:
            raise ValueError(f"{len(places)} image tokens belong to none of the {len(pictures)} pictures")
        return found

    def _read(self, picture: bytes) -> PixelInputs:
        from PIL import Image

        with Image.open(io.BytesIO(picture)) as opened:
            made = self.processor(images=[opened.convert("RGB")], return_tensors="pt")
        (grid,) = made["image_grid_thw"].tolist()
        return PixelInputs(pixel_values=made["pixel_values"], grid=tuple(grid))


def _has_processor(model: Path) -> bool:
    return any((model / name).is_file() for name in _PROCESSORS)


def _processor(model: Path) -> dict[str, Any]:
    """Settings of the image processor, in a file of its own or in that of the whole processor."""
    for name in _PROCESSORS:
        if (model / name).is_file():
            settings = _object(model / name)
            inside = settings.get("image_processor")
            if name == _PROCESSORS[0] or isinstance(inside, dict):
                return inside if isinstance(inside, dict) else settings
    return {}


def _config(model: Path) -> dict[str, Any]:
    return _object(model / "config.json")


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {first_line(error)}") from error
    return value if isinstance(value, dict) else {}
