"""Packed rows with pictures: pixels by the model's own image processor, positions by its own function.

A row's placeholders are filled with features in order, so pictures of several samples may share a row: what a sample
sees is what stands in its own document. Positions are computed document by document, as the model computes them for a
sample alone, and laid side by side.

Every row of a model that sees holds a picture. One that has none gets the smallest there is, a single feature, in a
document of its own behind all others: no loss depends on it, its gradient is exactly zero, and every rank runs the same
modules in the same order whatever its samples are, which collective operations rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from agentfly_lib.chat.image_reader import ImageReader, PixelInputs, reads
from agentfly_lib.chat.images import digest_of
from agentfly_lib.errors import ConfigError, LearnerError, ModelError
from agentfly_lib.types import Batch, ImageSpan, Segment, TrajectoryGroup

__all__ = ["TOWER", "Eyes", "SeenRow", "freeze_tower", "vision_tower"]

TOWER = "visual"
"""What the families that are known call the part that reads pictures, projection included."""

Ints = npt.NDArray[np.int64]
RopeIndex = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow:
    """A packed row, and what the model takes of its pictures."""

    batch: Batch
    position_ids: Ints  # [3, T]
    pixels: dict[str, torch.Tensor]
    """`pixel_values` [patches, W] and `image_grid_thw` [images, 3], in the order of their placeholders."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Eyes:
    """What turns the pictures of samples into a model's inputs."""

    reader: ImageReader
    rope_index: RopeIndex
    """The model's own `get_rope_index`."""
    blank: PixelInputs
    """The picture of a row that has none: one feature."""

    @classmethod
    def of(cls, path: Path, model: PreTrainedModel) -> Eyes | None:
        """Those of a model whose pictures can be read; None for any other. Raises `ModelError`."""
        if not reads(path):
            return None
        reader, rope_index = ImageReader.of(path), getattr(model.base_model, "get_rope_index", None)
        if rope_index is None or vision_tower(model) is None:
            raise ModelError(
                f"{path}: a {type(model).__name__} cannot be trained on pictures yet; models of the Qwen2-VL, "
                "Qwen2.5-VL and Qwen3-VL families can"
            )
        return cls(reader=reader, rope_index=rope_index, blank=_blank(reader))

    @property
    def canary_picture(self) -> bytes:
        """A small picture that is the same everywhere when decoded: a square of every brightness."""
        from PIL import Image

        file = BytesIO()
        Image.linear_gradient("L").resize((64, 64)).convert("RGB").save(file, format="PNG")
        return file.getvalue()

    def show_canary(self, token_ids: list[int]) -> list[int]:
        """Tokens of which some in the middle are the placeholders of `canary_picture`."""
        features = self.reader.tokens_of(self.reader.read(self.canary_picture).grid)
        start = len(token_ids) // 3
        if start + features >= len(token_ids):
            raise LearnerError(
                f"rollout.context_length leaves {len(token_ids)} tokens, too few for a picture of {features} features"
            )
        shown = [self.reader.image_token_id] * features
        return [*token_ids[:start], *shown, *token_ids[start + features :]]

    def spans(self, token_ids: Sequence[int], pictures: Sequence[bytes]) -> tuple[ImageSpan, ...]:
        """Where each picture is among its expanded placeholders. Raises `ValueError` if they do not fit."""
        return tuple(
            ImageSpan(
                digest=digest_of(picture), start=start, end=start + self.reader.tokens_of(seen.grid), grid=seen.grid
            )
            for picture, (start, seen) in zip(pictures, self.reader.placed(token_ids, pictures), strict=True)
        )

    def fitting(self, groups: Sequence[TrajectoryGroup]) -> tuple[list[TrajectoryGroup], list[str]]:
        """The groups, with every trajectory whose placeholders and features do not fit left out of statistics and loss.

        Told from tokens and recorded grids, without a look at a picture. Returns with them what is wrong with each.
        """
        misfits: dict[str, str] = {}
        for trajectory in (each for group in groups for each in group.trajectories):
            if reason := next(filter(None, map(self._misfit, trajectory.segments)), None):
                misfits[trajectory.id] = f"trajectory {trajectory.id} is not trained on: {reason}"
        fitting = [
            replace(
                group,
                trajectories=tuple(
                    replace(each, reward=None) if each.id in misfits else each for each in group.trajectories
                ),
            )
            if any(each.id in misfits for each in group.trajectories)
            else group
            for group in groups
        ]
        return fitting, list(misfits.values())

    def _misfit(self, segment: Segment) -> str | None:
        """Why the pictures of a segment do not fit its tokens; None if they do."""
        claimed = segment.token_ids == self.reader.image_token_id
        for image in segment.images:
            features, tokens = self.reader.tokens_of(image.grid), image.end - image.start
            if features != tokens or not claimed[image.start : image.end].all():
                return f"the picture {image.digest[:12]}... has {features} features and {tokens} tokens"
        features = sum(image.end - image.start for image in segment.images)
        placeholders = int(claimed.sum())
        return None if placeholders == features else f"{placeholders} image tokens, and {features} features for them"

    def see(self, batch: Batch) -> SeenRow:
        """The row with its pixels and positions.

        Raises `LearnerError` where placeholders and features do not fit: the shard is of another model, or damaged.
        """
        seen = [self._read(batch, image) for image in batch.images]
        placeholders = int((batch.token_ids == self.reader.image_token_id).sum())
        features = sum(image.end - image.start for image in batch.images)
        if placeholders != features:
            raise LearnerError(
                f"a row has {placeholders} image tokens and {features} features for them; a policy must never sample "
                "an image token, and text must never hold one"
            )
        if not seen:
            batch, seen = _with_blank(batch, self.reader.image_token_id), [self.blank]
        grids = torch.tensor([inputs.grid for inputs in seen])
        return SeenRow(
            batch=batch,
            position_ids=self._positions(batch, grids),
            pixels={
                "pixel_values": torch.cat([inputs.pixel_values for inputs in seen]),
                "image_grid_thw": grids,
            },
        )

    def _read(self, batch: Batch, image: ImageSpan) -> PixelInputs:
        inputs = self.reader.read(batch.pictures[image.digest])
        features = self.reader.tokens_of(inputs.grid)
        tokens = batch.token_ids[image.start : image.end]
        if inputs.grid != image.grid or features != len(tokens) or (tokens != self.reader.image_token_id).any():
            raise LearnerError(
                f"the picture {image.digest[:12]}... gives {features} features (patches {inputs.grid}), but has "
                f"{len(tokens)} tokens of the trajectory (patches {image.grid}); was it collected with another model?"
            )
        return inputs

    def _positions(self, batch: Batch, grids: torch.Tensor) -> Ints:
        """[3, T]: each document's positions as the model gives them to it alone."""
        end = len(batch.token_ids)
        edges = [*batch.boundaries.tolist(), *([end] if batch.boundaries[-1] < end else [])]
        starts = [image.start for image in batch.images] or [end - 1]
        first, parts = 0, []
        for start, stop in pairwise(edges):
            last = next((place for place, begin in enumerate(starts) if begin >= stop), len(starts))
            ids = torch.from_numpy(batch.token_ids[start:stop])[None]
            own = grids[first:last] if last > first else None
            kinds = (ids == self.reader.image_token_id).int()
            parts.append(self.rope_index(ids, kinds, image_grid_thw=own)[0][:, 0].numpy())
            first = last
        return np.concatenate(parts, axis=1)


def vision_tower(model: torch.nn.Module) -> torch.nn.Module | None:
    """The part of a model that reads pictures, projection included; None if it does not see."""
    return next((module for name, module in model.named_modules() if name.rpartition(".")[2] == TOWER), None)


def freeze_tower(model: PreTrainedModel) -> None:
    """The tower's weights are no longer trained."""
    tower = vision_tower(model)
    if tower is None:
        raise ConfigError("learner.freeze_vision is for models that see; this one has no vision tower")
    tower.requires_grad_(False)


def _with_blank(batch: Batch, token: int) -> Batch:
    """The row with one placeholder behind everything, which belongs to no sample."""
    return replace(
        batch,
        token_ids=np.append(batch.token_ids, np.int64(token)),
        position_ids=np.append(batch.position_ids, np.int64(0)),
        loss_mask=np.append(batch.loss_mask, False),
        rollout_logprobs=np.append(batch.rollout_logprobs, np.float32(np.nan)),
        advantages=np.append(batch.advantages, np.float32(0)),
    )


def _blank(reader: ImageReader) -> PixelInputs:
    from PIL import Image

    side, file = 8 * reader.merge, BytesIO()
    Image.new("RGB", (side, side)).save(file, format="PNG")
    whole = reader.read(file.getvalue())
    return PixelInputs(pixel_values=whole.pixel_values[: reader.merge**2], grid=(1, reader.merge, reader.merge))
