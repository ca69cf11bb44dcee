"""Builds one segment token by token: only ever appends, and sets the mask by who made the tokens, never by their value.

    builder.prompt(ids)                        mask 0
    builder.sampled(ids, logprobs, ...)        mask 1, one log-prob each
    builder.observed(bridge ids, messages)     mask 0, then `sampled` again, ...

Sampled ids enter as the engine gave them; text is never encoded again. Storage is flat arrays (thirteen bytes a token),
so that thousands of chains in flight stay small.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from agentfly_lib.types import FinishReason, ImageSpan, Message, Segment, Turn

__all__ = ["SegmentBuilder"]


class SegmentBuilder:
    """One segment in the making. Not safe for use by several chains; `build` may be called at any time."""

    def __init__(self) -> None:
        self._token_ids = array("i")
        self._loss_mask = bytearray()
        self._logprobs = array("f")
        self._versions = array("i")
        self._turns: list[Turn] = []
        self._images: list[ImageSpan] = []
        self._num_sampled = 0
        self._missing_logprobs = 0

    def __len__(self) -> int:
        return len(self._token_ids)

    @property
    def token_ids(self) -> list[int]:
        """A copy of all ids so far [T]: the prompt of the next generation."""
        return self._token_ids.tolist()

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled so far."""
        return self._num_sampled

    @property
    def missing_logprobs(self) -> int:
        """Sampled tokens that came without a log-prob (None or NaN); they are kept with NaN."""
        return self._missing_logprobs

    @property
    def images(self) -> tuple[ImageSpan, ...]:
        """The pictures so far, in order."""
        return tuple(self._images)

    def prompt(self, ids: Sequence[int], images: Sequence[ImageSpan] = ()) -> None:
        """Open the segment with the ids of its first prompt, `images` among them.

        Raises:
            ValueError: the segment already has tokens, or the prompt has none.
        """
        if self._token_ids:
            raise ValueError(f"a prompt opens a segment, and this one already has {len(self)} tokens")
        if not ids:
            raise ValueError("the first prompt of a segment has no tokens")
        self._append_unsampled(ids, images)

    def sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float | None],
        message: Message,
        *,
        finish: FinishReason,
        policy_version: int,
        versions: Sequence[int] | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Append one turn of the policy: its ids [S] as sampled, and the engine's log-prob of each [S].

        `policy_version` sampled the first token, `versions` [S] each of them; if not given, one version all.

        Raises:
            ValueError: there is no prompt yet, or not as many log-probs or versions as ids.
        """
        if not self._token_ids:
            raise ValueError("a sampled turn needs a prompt before it")
        if len(ids) != len(logprobs):
            raise ValueError(f"every sampled token needs its log-prob: {len(ids)} tokens, {len(logprobs)} log-probs")
        versions = [policy_version] * len(ids) if versions is None else versions
        if len(ids) != len(versions):
            raise ValueError(f"every sampled token has its version: {len(ids)} tokens, {len(versions)} versions")
        start = len(self)
        values = [math.nan if value is None else value for value in logprobs]
        self._token_ids.extend(ids)
        self._loss_mask.extend(b"\x01" * len(ids))
        self._logprobs.extend(values)
        self._versions.extend(versions)
        self._num_sampled += len(ids)
        self._missing_logprobs += sum(map(math.isnan, values))
        self._turns.append(
            Turn(
                message=message,
                start=start,
                end=len(self),
                sampled=True,
                finish=finish,
                policy_version=policy_version,
                seconds=seconds,
            )
        )

    def answered(self, answer: str) -> None:
        """The newest sampled turn ended the chain with this answer.

        Raises:
            ValueError: no turn was sampled.
        """
        for index in range(len(self._turns) - 1, -1, -1):
            if self._turns[index].sampled:
                self._turns[index] = dataclasses.replace(self._turns[index], answer=answer)
                return
        raise ValueError("an answer needs a sampled turn")

    def observed(
        self,
        ids: Sequence[int],
        messages: Iterable[Message],
        *,
        images: Sequence[ImageSpan] = (),
        seconds: float = 0.0,
        reward: float | None = None,
    ) -> None:
        """Append what came back to the policy: the ids between its last token and its next turn [B], all masked.

        images: those among `ids`; their spans count from the first of these.

        The template renders the messages together, so the ids are one span: the first message's turn holds it (with the
        seconds, and the reward of the policy's turn), those after it are empty spans at its end. Without ids (the
        segment's prompt already renders the messages) all of them are empty.

        Raises:
            ValueError: there is no prompt yet.
        """
        if not self._token_ids:
            raise ValueError("an observation needs a prompt before it")
        start = len(self)
        self._append_unsampled(ids, images)
        for message in messages:
            self._turns.append(
                Turn(message=message, start=start, end=len(self), sampled=False, seconds=seconds, reward=reward)
            )
            start, seconds, reward = len(self), 0.0, None

    def build(self) -> Segment:
        """The segment as it stands."""
        return Segment(
            token_ids=np.array(self._token_ids, dtype=np.int32),
            loss_mask=np.frombuffer(bytes(self._loss_mask), dtype=np.bool_),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            versions=np.array(self._versions, dtype=np.int32),
            turns=tuple(self._turns),
            images=tuple(self._images),
        )

    def _append_unsampled(self, ids: Sequence[int], images: Sequence[ImageSpan]) -> None:
        first = len(self)
        self._images += [
            dataclasses.replace(image, start=first + image.start, end=first + image.end) for image in images
        ]
        self._token_ids.extend(ids)
        self._loss_mask.extend(bytes(len(ids)))
        self._logprobs.extend([math.nan] * len(ids))
        self._versions.extend([-1] * len(ids))
