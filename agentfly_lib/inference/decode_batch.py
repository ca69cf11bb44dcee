"""Sequences that a `transformers` model decodes together, one token of each at a time.

Rows are padded on the left, so that all of them end at the same column. New rows join between two tokens: their prompts
are run through the model, and their keys and values are put beside those that are there. Rows that are done leave, and
columns that only padding is left in are dropped. Models whose cache is not plain keys and values (sliding windows,
recurrent states) take new rows only when the batch is empty.

Pictures of a prompt are read as it joins. They move the positions of what comes behind them; by how much, the model's
own function says, once for each row.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentfly_lib.chat.image_reader import ImageReader
from agentfly_lib.inference.generate import GenerationRequest
from agentfly_lib.inference.sampler import draw, processed_logprobs
from agentfly_lib.inference.stop_strings import StopStrings
from agentfly_lib.types import FinishReason

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import DynamicCache, PreTrainedModel

__all__ = ["DecodeBatch", "Row"]


class Row:
    """One request in the making."""

    def __init__(
        self, request: GenerationRequest, *, context_length: int, stop_strings: StopStrings | None = None
    ) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish: FinishReason | None = None
        """Set when the row is done."""
        self._random = random.Random(request.seed)
        self._stops = frozenset(request.stop_token_ids)
        self._stop_strings = stop_strings
        self._room = min(request.max_tokens, context_length - len(request.token_ids))

    def uniform(self) -> float:
        """The next random number of this request alone."""
        return self._random.random()

    def append(self, token: int, logprob: float) -> None:
        """Take one more token, which may end the row."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in self._stops or (self._stop_strings is not None and self._stop_strings.push(token)):
            self.finish = FinishReason.STOP
        elif len(self.token_ids) >= self._room:
            self.finish = FinishReason.LENGTH


@dataclass(slots=True)
class _State:
    """What the model keeps of the rows."""

    cache: DynamicCache
    mask: Tensor  # [B, T]  1 where a row has a token
    shifts: Tensor  # [B, 1]  what is added to a token's place for its position
    logits: Tensor  # [B, V]  of each row's next token


class DecodeBatch:
    """The rows that are decoded now. Not safe for use by several threads."""

    def __init__(
        self, model: PreTrainedModel, *, reader: ImageReader | None = None, banned: Sequence[int] = ()
    ) -> None:
        """reader: of a model that sees. banned: ids that are never sampled."""
        self.rows: list[Row] = []
        self._model = model
        self._reader = reader
        self._banned = banned
        self._state: _State | None = None
        self._last_only = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        )

    @property
    def open(self) -> bool:
        """Whether new rows may join now."""
        return self._state is None or _is_plain(self._state.cache)

    def admit(self, rows: Sequence[Row]) -> None:
        """Run the prompts of new rows and let them join."""
        import torch
        from transformers import DynamicCache

        longest = max(len(row.request.token_ids) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, row in enumerate(rows):
            start = longest - len(row.request.token_ids)
            ids[index, start:] = torch.tensor(list(row.request.token_ids))
            mask[index, start:] = 1
        device = self._model.device
        cache, ids, mask = DynamicCache(config=self._model.config.get_text_config()), ids.to(device), mask.to(device)
        shifts, seen = self._seen(rows, ids, mask)
        logits = self._forward(ids, mask, cache, shifts, **seen)
        joining = _State(cache=cache, mask=mask, shifts=shifts, logits=logits)
        self._state = joining if self._state is None else _joined(self._state, joining)
        self.rows += rows

    def step(self) -> list[Row]:
        """Sample one token of every row; the rows that are done with it, which leave. There must be a row."""
        import torch

        assert self._state is not None
        requests = [row.request for row in self.rows]
        logprobs = processed_logprobs(self._state.logits, requests, [row.token_ids for row in self.rows], self._banned)
        tokens = draw(logprobs, requests, [row.uniform() for row in self.rows])
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
        for row, token, logprob in zip(self.rows, tokens.tolist(), chosen.tolist(), strict=True):
            row.append(token, logprob)
        done = [row for row in self.rows if row.finish is not None]
        kept = self.drop(done)
        if self._state is not None:
            state, tokens = self._state, tokens[kept][:, None]
            state.mask = torch.cat([state.mask, torch.ones_like(tokens)], dim=-1)
            state.logits = self._forward(tokens, state.mask, state.cache, state.shifts)
        return done

    def drop(self, rows: Sequence[Row]) -> list[int]:
        """Let rows leave, done or not; the former places of those that stay."""
        gone = {id(row) for row in rows}
        kept = [index for index, row in enumerate(self.rows) if id(row) not in gone]
        if len(kept) < len(self.rows):
            self.rows = [self.rows[index] for index in kept]
            self._state = _selected(self._state, kept) if kept and self._state is not None else None
        return kept

    def _seen(self, rows: Sequence[Row], ids: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """How far the pictures of prompts move what is behind them [B, 1], and what the model takes of the pictures."""
        import torch

        shifts = torch.zeros(len(rows), 1, dtype=torch.long, device=ids.device)
        pictures = [picture for row in rows for picture in row.request.images]
        if self._reader is None or not pictures:
            return shifts, {}
        inputs = [self._reader.read(picture) for picture in pictures]
        grids = torch.tensor([each.grid for each in inputs], device=ids.device)
        kinds = (ids == self._reader.image_token_id).int()
        positions, shifts = self._model.base_model.get_rope_index(  # type: ignore[operator]
            ids, kinds, image_grid_thw=grids, attention_mask=mask
        )
        pixels = torch.cat([each.pixel_values for each in inputs]).to(ids.device)
        return shifts, {"pixel_values": pixels, "image_grid_thw": grids, "position_ids": positions}

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache, shifts: Tensor, **seen: Tensor) -> Tensor:
        """Logits [B, V] behind the last of `ids` [B, S]; `mask` [B, T] covers the cache and `ids`."""
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        positions = seen.pop("position_ids", places + shifts)
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **seen,
            **self._last_only,
        )
        return output.logits[:, -1]


def _is_plain(cache: DynamicCache) -> bool:
    from transformers.cache_utils import DynamicLayer

    return all(type(layer) is DynamicLayer for layer in cache.layers)


def _joined(ours: _State, theirs: _State) -> _State:
    """Both as one [B1 + B2, ...]; the shorter is padded on the left."""
    import torch
    from torch.nn.functional import pad

    columns = max(ours.mask.shape[1], theirs.mask.shape[1])
    left, right = columns - ours.mask.shape[1], columns - theirs.mask.shape[1]
    for layer, other in zip(_layers(ours.cache), _layers(theirs.cache), strict=True):
        layer.keys = torch.cat([pad(layer.keys, (0, 0, left, 0)), pad(other.keys, (0, 0, right, 0))])
        layer.values = torch.cat([pad(layer.values, (0, 0, left, 0)), pad(other.values, (0, 0, right, 0))])
    mask = torch.cat([pad(ours.mask, (left, 0)), pad(theirs.mask, (right, 0))])
    shifts = torch.cat([ours.shifts, theirs.shifts])
    return _State(cache=ours.cache, mask=mask, shifts=shifts, logits=torch.cat([ours.logits, theirs.logits]))


def _selected(state: _State, kept: list[int]) -> _State:
    """Some of the rows, without the columns that only padding is left in."""
    import torch

    index = torch.tensor(kept, device=state.mask.device)
    state.cache.batch_select_indices(index)
    mask = state.mask[index]
    padding = int(mask.argmax(dim=-1).min())
    if padding and _is_plain(state.cache):
        mask = mask[:, padding:]
        for layer in _layers(state.cache):
            layer.keys, layer.values = layer.keys[..., padding:, :], layer.values[..., padding:, :]
    return _State(cache=state.cache, mask=mask, shifts=state.shifts[index], logits=state.logits[index])


def _layers(cache: DynamicCache) -> list[Any]:
    """Layers of a plain cache: `keys` and `values`, [B, heads, T, width]."""
    return list(cache.layers)
