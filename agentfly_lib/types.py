"""The vocabulary of a rollout: problems, turns, segments, trajectories, groups, and what training makes of them.

Values are frozen; arrays are numpy and must be treated as read-only. A worked example of one segment, an agent that
calls a tool once (`S` marks what the policy sampled, mask 1; everything else has mask 0 and log-prob NaN):

    tokens     prompt, 11 | <tool_call>...<|im_end|>, 12 | tool result and next prompt, 9 | 4<|im_end|>, 2
    sampled               | S S S S S S S S S S S S      |                                | S S
    loss_mask  0 x 11     | 1 x 12                       | 0 x 9                          | 1 x 2
    versions   -1 x 11    | 7 x 12                       | -1 x 9                         | 8 x 2
    turns                 | Turn(11, 23, sampled)        | Turn(23, 32, tool result)      | Turn(32, 34, sampled)

A picture stands in the tokens as its placeholders (mask 0), one for each of its features: an `ImageSpan` says which,
and `Trajectory.pictures` holds the encoded file under the span's digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from agentfly_lib.endings import FailureKind, FinishReason, Outcome, StopReason

__all__ = [
    "RESERVED_COLUMNS",
    "Batch",
    "Canary",
    "Failure",
    "FailureKind",
    "FinishReason",
    "ImageSpan",
    "Message",
    "Outcome",
    "Problem",
    "Segment",
    "StopReason",
    "TrainingSample",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
]

Message = dict[str, Any]
"""One chat message: `role`, `content`, and what the template knows besides (`tool_call_id`, `name`)."""

RESERVED_COLUMNS: frozenset[str] = frozenset(
    {
        "context",
        "env_reward",
        "final_response",
        "final_responses",
        "messages",
        "prediction",
        "problem",
        "reward",
        "trajectories",
        "trajectory",
    }
)
"""Names that rewards and tools get from the rollout itself; a dataset may not have a free column of that name."""

IntArray = npt.NDArray[np.int32]
MaskArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]

_OF_TURNS: IntArray = np.empty(0, np.int32)
"""Stands for versions that nobody gave."""
_HEXADECIMAL = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What broke, and where."""

    kind: FailureKind
    message: str
    """One line that names the culprit."""
    where: str
    """The stage of the chain: `generate`, `tool:<name>`, `prompt`, `reward:<name>`, ..."""
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One dataset row. Columns other than the conversation reach tools and rewards by name."""

    id: str
    """Stable over runs: a content hash, or the row's own `id` column."""
    messages: tuple[Message, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A span of a segment, `[start, end)`: what the policy sampled, or what came back to it."""

    message: Message
    start: int
    end: int
    sampled: bool
    finish: FinishReason | None = None
    """Set on sampled turns only."""
    policy_version: int | None = None
    """Version of the weights that sampled the turn's first token; set on sampled turns only."""
    seconds: float = 0.0
    """Wall seconds of generation, or of the tools that made this turn."""
    reward: float | None = None
    """What the environment gave for the policy's turn before this one; set on the first turn that came back."""
    answer: str | None = None
    """The answer that the policy gave with this turn; set on the turn with which it ended the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpan:
    """The placeholders `[start, end)` of one picture among the tokens: as many as the model has features for it.

    Raises `ValueError` for a span without tokens, or a digest that is none.
    """

    digest: str
    """SHA-256 of the encoded file, hexadecimal."""
    start: int
    end: int
    grid: tuple[int, int, int]
    """Patches (frames, rows, columns) that the family's processor makes of it; `image_grid_thw` of the Qwen family."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"an image needs at least one placeholder, [{self.start}, {self.end}) has none")
        if len(self.digest) != 64 or not set(self.digest) <= _HEXADECIMAL:
            raise ValueError(f"an image is named by the SHA-256 of its file, not by {self.digest[:80]!r}")
        if len(self.grid) != 3 or min(self.grid) < 1:
            raise ValueError(f"the grid of an image is (frames, rows, columns), not {self.grid}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One append-only stretch of tokens: every turn's prompt is a prefix of what follows.

    Raises `ValueError` for arrays of different lengths, and for images that overlap, reach beyond the tokens, or cover
    a token that was sampled.
    """

    token_ids: IntArray  # [T]
    loss_mask: MaskArray  # [T]  True exactly where the policy sampled
    logprobs: FloatArray  # [T]  of the engine's processed distribution; NaN where the mask is False
    turns: tuple[Turn, ...]
    versions: IntArray = field(default_factory=lambda: _OF_TURNS)  # [T]
    """Version of the weights that sampled each token, -1 where the mask is False or nobody knows. Unless given, what
    the turns say of their first tokens."""
    images: tuple[ImageSpan, ...] = ()
    """In the order of their placeholders."""

    def __post_init__(self) -> None:
        if self.versions is _OF_TURNS:
            object.__setattr__(self, "versions", _versions_of_turns(self.turns, self.loss_mask))
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(
                f"a segment needs as many mask entries, log-probs and versions as tokens: {len(self.token_ids)} "
                f"tokens, {len(self.loss_mask)} mask entries, {len(self.logprobs)} log-probs, {len(self.versions)} "
                f"versions"
            )
        _check_spans(self.images, self.loss_mask)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segment):
            return NotImplemented
        return (
            np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.loss_mask, other.loss_mask)
            and np.array_equal(self.logprobs, other.logprobs, equal_nan=True)
            and np.array_equal(self.versions, other.versions)
            and self.turns == other.turns
            and self.images == other.images
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One chain, from the first prompt to its end. `reward` is None until it is scored, and where it cannot be."""

    id: str
    """`<group_id>/<chain>`"""
    problem_id: str
    group_id: str
    chain: int
    segments: tuple[Segment, ...]
    stop: StopReason
    attempt: int = 0
    env_reward: float | None = None
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Seconds and counts of this chain: `generate_seconds`, `tool_seconds`, `tool_calls`, `tool_errors`, ..."""
    failure: Failure | None = None
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """SHA-256 -> encoded file, of every picture that its segments or messages name."""

    def __post_init__(self) -> None:
        for segment in self.segments:
            for image in segment.images:
                if image.digest not in self.pictures:
                    raise ValueError(
                        f"trajectory {self.id} shows the image {image.digest[:12]}..., but does not have it"
                    )

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every turn's message in order, over all segments (the first prompt is the problem's)."""
        return tuple(turn.message for segment in self.segments for turn in segment.turns)

    @property
    def num_sampled(self) -> int:
        return sum(segment.num_sampled for segment in self.segments)

    @property
    def num_turns(self) -> int:
        """Turns that the policy sampled."""
        return sum(turn.sampled for segment in self.segments for turn in segment.turns)

    @property
    def final_response(self) -> str:
        """The answer that the policy gave: without its thoughts, without the markup of its format.

        Where it gave none (the chain was cut), the text of the last sampled turn; empty if there is none.
        """
        sampled = [turn for segment in self.segments for turn in segment.turns if turn.sampled]
        if not sampled:
            return ""
        last = sampled[-1]
        return last.answer if last.answer is not None else str(last.message.get("content") or "")

    @property
    def policy_version(self) -> int:
        """Oldest version of the weights that sampled one of its turns; -1 if none did."""
        versions = [
            turn.policy_version
            for segment in self.segments
            for turn in segment.turns
            if turn.policy_version is not None
        ]
        return min(versions, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The chains of one problem; advantages compare them with each other."""

    id: str
    """`<step>-<index of the problem within the step>`, unique within a run's training steps."""
    problem: Problem
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One segment as the learner sees it.

    Raises `ValueError` for images that overlap, reach beyond the tokens, cover a token in the loss, or whose picture is
    missing.
    """

    trajectory_id: str
    segment: int = 0
    """Which of its trajectory's segments it is."""
    token_ids: IntArray  # [T]
    loss_mask: MaskArray  # [T]
    rollout_logprobs: FloatArray  # [T]  NaN where the mask is False, or where the engine gave none
    advantages: FloatArray  # [T]  0 where the mask is False
    images: tuple[ImageSpan, ...] = ()
    """In the order of their placeholders."""
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """SHA-256 -> encoded file, of every image."""

    def __post_init__(self) -> None:
        _check_spans(self.images, self.loss_mask)
        for image in self.images:
            if image.digest not in self.pictures:
                raise ValueError(f"the sample of {self.trajectory_id} lacks the picture {image.digest[:12]}...")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Samples laid end to end in one row of tokens; `position_ids` restart at 0 with every sample.

    Per-token arrays are aligned with `token_ids`: entry t speaks of the probability of token t given those before it
    in its own sample, so the first token of a sample is never trained on.
    """

    token_ids: npt.NDArray[np.int64]  # [T]
    position_ids: npt.NDArray[np.int64]  # [T]
    boundaries: npt.NDArray[np.int32]  # [samples + 1]  cumulative sample lengths, from 0 to T (excluding padding)
    loss_mask: MaskArray  # [T]
    rollout_logprobs: FloatArray  # [T]
    advantages: FloatArray  # [T]
    sample_index: IntArray  # [samples]  which sample of the step each one is
    num_loss_tokens: int
    """Loss tokens of this micro-batch. The loss is divided by the global count, which is given to it separately."""
    images: tuple[ImageSpan, ...] = ()
    """In the order of their placeholders; spans count from the start of the row."""
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """SHA-256 -> encoded file, of every image."""


def _versions_of_turns(turns: Sequence[Turn], loss_mask: MaskArray) -> IntArray:
    versions = np.full(len(loss_mask), -1, np.int32)
    for turn in turns:
        if turn.sampled and turn.policy_version is not None:
            versions[turn.start : turn.end] = turn.policy_version
    versions[~loss_mask] = -1
    return versions


def _check_spans(images: Sequence[ImageSpan], masked: MaskArray) -> None:
    """`masked` [T] is True where a token is the policy's own, which no image may cover."""
    free = 0
    for image in images:
        if image.start < free:
            raise ValueError(
                f"the image at [{image.start}, {image.end}) begins before the one before it ends, at {free}"
            )
        if image.end > len(masked):
            raise ValueError(f"the image at [{image.start}, {image.end}) is cut off: there are {len(masked)} tokens")
        if masked[image.start : image.end].any():
            raise ValueError(f"the image at [{image.start}, {image.end}) covers tokens that the policy sampled")
        free = image.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Fixed tokens and what the learner thinks of them, at temperature 1.

    Use at least 64 tokens: the prefix cache works in blocks of 32 (16 on a GPU), and a shorter prompt never uses it.
    """

    token_ids: tuple[int, ...]  # [T]
    logprobs: tuple[float, ...]  # [T - 1]  entry t: log p(token_ids[t + 1] | token_ids[: t + 1])
    images: tuple[bytes, ...] = ()
    """Encoded pictures, in the order of their placeholders: the features of old weights, had they survived, would be
    found and used."""

    def __post_init__(self) -> None:
        if len(self.token_ids) < 2 or len(self.logprobs) != len(self.token_ids) - 1:
            raise ValueError(
                f"a canary of T >= 2 tokens has T - 1 log-probs, not {len(self.token_ids)} and {len(self.logprobs)}"
            )
