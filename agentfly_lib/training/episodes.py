"""What an advantage estimator sees of a trajectory: its trained tokens in a row, its turns, and who rewarded what.

All segments of a trajectory are one row here, and tokens that are not trained on are not in it, so nothing about them
can enter an advantage. The rewards of the turns and of the end add up to the trajectory's reward: what turns brought by
themselves stands with the turn, the rest with the last token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from agentfly_lib.types import Segment, Trajectory

__all__ = ["Episode", "episode_of"]

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """One trajectory with T trained tokens in K turns of the policy."""

    id: str
    outcome: float
    """Its reward as scored, without any penalty."""
    turn_of_token: Places  # [T]  ascending, from 0
    turn_rewards: Floats  # [K]  what the environment gave for each turn
    states: tuple[str, ...]  # [K]  what the policy was told before each turn; equal text is an equal state
    penalties: Floats | None = None  # [T]  KL penalty of each token, where it is taken from the reward
    values: Floats | None = None  # [T]  of the value head before each token
    truncated: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.turn_of_token)

    @property
    def num_turns(self) -> int:
        return len(self.turn_rewards)

    @property
    def reward(self) -> float:
        """The outcome less the penalties."""
        return self.outcome - (0.0 if self.penalties is None else float(self.penalties.sum()))

    @cached_property
    def rewards_of_turns(self) -> Floats:
        """What each turn earned [K]: its own reward, the last one also the rest of the outcome, less its penalties."""
        rewards = self.turn_rewards.copy()
        rewards[-1] += self.outcome - self.turn_rewards.sum()
        if self.penalties is not None:
            np.subtract.at(rewards, self.turn_of_token, self.penalties)
        return rewards

    @cached_property
    def rewards_of_tokens(self) -> Floats:
        """What each token earned [T]: a turn's reward stands at the turn's last token that is trained on."""
        rewards = np.zeros(self.num_tokens)
        last = np.searchsorted(self.turn_of_token, np.arange(self.num_turns), side="right") - 1
        np.add.at(rewards, np.maximum(last, 0), self.turn_rewards)
        rewards[-1] += self.outcome - self.turn_rewards.sum()
        return rewards if self.penalties is None else rewards - self.penalties

    @property
    def outcome_at_the_end(self) -> Floats:
        """The whole outcome at the last token, whichever turn earned it, less each token's penalty [T]."""
        rewards = np.zeros(self.num_tokens)
        rewards[-1] = self.outcome
        return rewards if self.penalties is None else rewards - self.penalties

    def per_token(self, of_turns: Floats) -> Floats:
        """A number for each turn [K] as one for each of its tokens [T]."""
        return of_turns[self.turn_of_token]

    @property
    def bare(self) -> Episode:
        """The same without penalties: what its outcome alone says."""
        return replace(self, penalties=None)

    def measured(self, *, penalties: Floats | None, values: Floats | None) -> Episode:
        """The same with what the learner measured at the start of the step."""
        return replace(self, penalties=penalties, values=values)


def episode_of(trajectory: Trajectory, masks: Sequence[npt.NDArray[np.bool_]]) -> Episode:
    """A trajectory whose segments are trained on where `masks` say; it must have a reward and a trained token."""
    if trajectory.reward is None:
        raise ValueError(f"trajectory {trajectory.id} has no reward")
    turns = _turns(trajectory.segments)
    of_token: list[npt.NDArray[np.intp]] = []
    first = 0
    for segment, mask in zip(trajectory.segments, masks, strict=True):
        # A token belongs to the turn that it is part of or leads to; what follows the last turn belongs to that.
        ends = np.array([turn.end for turn in segment.turns if turn.sampled], dtype=np.intp)
        places = np.searchsorted(ends, np.flatnonzero(mask), side="right")
        of_token.append(first + np.minimum(places, max(len(ends) - 1, 0)))
        first += len(ends)
    turn_of_token = np.concatenate(of_token)
    return Episode(
        id=trajectory.id,
        outcome=trajectory.reward,
        turn_of_token=np.minimum(turn_of_token, len(turns) - 1),
        turn_rewards=np.array([reward for _, reward in turns]),
        states=tuple(state for state, _ in turns),
        truncated=trajectory.stop.truncated,
    )


def _turns(segments: Sequence[Segment]) -> list[tuple[str, float]]:
    """State before and reward after each sampled turn; one turn from no state if nothing says where turns are."""
    found: list[tuple[str, float]] = []
    told: list[Any] = []
    for turn in (turn for segment in segments for turn in segment.turns):
        if turn.sampled:
            found.append((json.dumps(told, sort_keys=True, default=str), 0.0))
            told = []
        else:
            told.append(turn.message.get("content"))
            if found and turn.reward is not None:
                state, reward = found[-1]
                found[-1] = (state, reward + turn.reward)
    return found or [("[]", 0.0)]
