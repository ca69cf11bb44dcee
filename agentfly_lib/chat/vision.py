"""How pictures stand among a model's tokens.

A chat template writes one placeholder for a picture. The model wants as many as it has features for it, and, in some
families, words between them that say which part of the picture they are. Placeholders are replaced once, as ids, after
the text was encoded: what the expansion stands between begins and ends with control tokens, so that its neighbours are
encoded as without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from agentfly_lib.chat.image_reader import ImageReader, sees, vision_token_ids
from agentfly_lib.chat.images import Picture
from agentfly_lib.errors import ImageError, ModelError
from agentfly_lib.types import ImageSpan

__all__ = ["ImageLayout", "Layout", "PatchGrid", "Prompt", "Tiles", "expand", "find_layout", "smart_resize"]

Grid = tuple[int, int, int]
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Ids, and which of them are pictures."""

    ids: list[int]
    images: tuple[ImageSpan, ...] = ()
    text: str | None = field(default=None, compare=False, repr=False)
    """See `Bridge.text`."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What stands for one picture."""

    ids: Sequence[int]
    """Its placeholders, and what the family writes between them."""
    grid: Grid
    """See `ImageSpan.grid`."""


class ImageLayout(Protocol):
    """A family's way to write pictures."""

    @property
    def image_token_id(self) -> int:
        """The placeholder: the template writes one, and each feature has one."""
        ...

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Ids that claim a picture, which a policy must never sample."""
        ...

    def of(self, picture: Picture) -> Layout:
        """Raises `ImageError` for a picture that the family cannot take, `ModelError` for an unknown family."""
        ...


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL: patches of the resized picture, `merge` x `merge` of them to a feature."""

    image_token_id: int
    banned_token_ids: tuple[int, ...]
    patch: int
    """Pixels of a patch, along each side."""
    merge: int
    min_pixels: int
    max_pixels: int

    @classmethod
    def of_model(cls, model: Path) -> PatchGrid:
        """As the image processor of the model is set. Raises `ModelError`."""
        reader = ImageReader.of(model)
        size = reader.processor.size
        return cls(
            image_token_id=reader.image_token_id,
            banned_token_ids=vision_token_ids(model),
            patch=reader.processor.patch_size,
            merge=reader.merge,
            min_pixels=size["shortest_edge"],
            max_pixels=size["longest_edge"],
        )

    def of(self, picture: Picture) -> Layout:
        """As many placeholders as features."""
        height, width = smart_resize(
            picture.height,
            picture.width,
            factor=self.patch * self.merge,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )
        rows, columns = height // self.patch, width // self.patch
        return Layout(ids=[self.image_token_id] * (rows * columns // self.merge**2), grid=(1, rows, columns))


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Idefics3 and SmolVLM: tiles of one size in rows and columns, then the whole picture; each has as many features.

    The grid is (tiles, rows, columns), the whole picture being a tile; (1, 1, 1) for a picture that is not split.
    """

    image_token_id: int
    banned_token_ids: tuple[int, ...]
    features: int
    """Of a tile."""
    settings: str
    """Of the processor, as JSON."""
    processor: Any = field(repr=False)
    encode: Encode = field(repr=False)

    @classmethod
    def of_model(cls, model: Path, tokenizer: Any) -> Tiles:
        """As the processor of the model is set. Raises `ModelError`."""
        from transformers import AutoImageProcessor

        try:
            processor = AutoImageProcessor.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError(f"cannot load an image processor from {model}: {error}") from error
        vocabulary = tokenizer.get_vocab()
        names = [_IMAGE, _AROUND, _WHOLE, *(_tile(row, column) for row in range(6) for column in range(6))]
        if missing := [name for name in names[:3] if name not in vocabulary]:
            raise ModelError(f"the vocabulary of {model} lacks {', '.join(missing)}, which it needs for pictures")
        return cls(
            image_token_id=vocabulary[_IMAGE],
            banned_token_ids=tuple(sorted(vocabulary[name] for name in names if name in vocabulary)),
            features=_features_of_tile(model),
            settings=processor.to_json_string(),
            processor=processor,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        )

    def of(self, picture: Picture) -> Layout:
        """The tiles row by row, each with its name, and the whole picture behind them."""
        rows, columns = _tiles(self.processor, picture.height, picture.width)
        return self._written(rows, columns)

    @lru_cache(maxsize=64)  # noqa: B019  one of them lives as long as the program
    def _written(self, rows: int, columns: int) -> Layout:
        features = _IMAGE * self.features
        text = "".join(
            "".join(f"{_AROUND}{_tile(row, column)}{features}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        text += ("\n" if rows else "") + f"{_AROUND}{_WHOLE}{features}{_AROUND}"
        return Layout(ids=self.encode(text), grid=(rows * columns + 1, max(rows, 1), max(columns, 1)))


@dataclass(frozen=True, kw_only=True)
class _Unknown:
    """A model that sees in a way that is not known here; it can be used as long as nothing is shown to it."""

    fault: str
    banned_token_ids: tuple[int, ...]
    image_token_id: int = -1

    def of(self, picture: Picture) -> Layout:
        raise ModelError(self.fault)


_IMAGE, _AROUND, _WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
_PATCH_GRID = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
_TILES = ("idefics3", "smolvlm")


def find_layout(model: Path, tokenizer: Any) -> ImageLayout | None:
    """How the model in a directory has pictures written; None if it does not see. Raises `ModelError`."""
    config = _json(model / "config.json")
    if not config or not sees(model):
        return None
    kind = str(config.get("model_type"))
    if kind in _PATCH_GRID:
        return PatchGrid.of_model(model)
    if kind in _TILES:
        return Tiles.of_model(model, tokenizer)
    known = ", ".join((*_PATCH_GRID, *_TILES))
    return _Unknown(
        fault=f"{model} is a {kind}, and how that writes pictures is not known; these are: {known}",
        banned_token_ids=vision_token_ids(model),
    )


def expand(ids: Sequence[int], pictures: Sequence[Picture], layout: ImageLayout | None) -> Prompt:
    """Encoded text with its placeholders replaced, the n-th by what stands for the n-th picture.

    Raises `ModelError` if there are not as many placeholders as pictures, and what `ImageLayout.of` does.
    """
    if layout is None:
        return Prompt(ids=list(ids))
    places = [place for place, token in enumerate(ids) if token == layout.image_token_id]
    if len(places) != len(pictures):
        raise ModelError(
            f"the chat template writes {len(places)} placeholders for {len(pictures)} images; use the template of the "
            f"model, and show images in messages whose role it knows"
        )
    expanded: list[int] = []
    spans: list[ImageSpan] = []
    done = 0
    for place, picture in zip(places, pictures, strict=True):
        expanded += ids[done:place]
        written = layout.of(picture)
        start = len(expanded)
        expanded += written.ids
        spans.append(ImageSpan(digest=picture.digest, start=start, end=len(expanded), grid=written.grid))
        done = place + 1
    return Prompt(ids=[*expanded, *ids[done:]], images=tuple(spans))


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width nearest to the given ones that `factor` divides, with an area within the bounds if possible.

    As in Qwen's `qwen-vl-utils`. Raises `ImageError` for a picture that is too narrow.
    """
    if max(height, width) > 200 * min(height, width):
        raise ImageError(f"an image of {width} x {height} pixels is too narrow: the limit is 200 to 1")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


@lru_cache(maxsize=1024)
def _tiles(processor: Any, height: int, width: int) -> tuple[int, int]:
    """Rows and columns that the processor splits a picture of this size into; 0 and 0 if it does not.

    Asked of the processing itself: its function that foretells the number rounds otherwise for some sizes.
    """
    import numpy as np

    made = processor(images=[[np.zeros((height, width, 3), np.uint8)]], return_row_col_info=True, return_tensors="np")
    return made["rows"][0][0], made["cols"][0][0]


def _features_of_tile(model: Path) -> int:
    for name in ("processor_config.json", "preprocessor_config.json"):
        if isinstance(count := _json(model / name).get("image_seq_len"), int):
            return count
    config = _json(model / "config.json")
    vision = config["vision_config"]
    try:
        return int((vision["image_size"] // vision["patch_size"]) ** 2 / config["scale_factor"] ** 2)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ModelError(
            f"{model / 'processor_config.json'} does not say image_seq_len, the features of a tile"
        ) from error


def _tile(row: int, column: int) -> str:
    return f"<row_{row + 1}_col_{column + 1}>"


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
