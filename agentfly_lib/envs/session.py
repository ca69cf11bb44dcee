"""One trajectory in an environment: it begins with the trajectory's own problem, and the rewards add up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentfly_lib.envs.environment import EnvironmentKind, StepResult
from agentfly_lib.envs.instances import EnvironmentInstance
from agentfly_lib.errors import EnvironmentFailure

__all__ = ["FIRST_OBSERVATION", "EnvironmentSession", "Progress"]

FIRST_OBSERVATION = "first_observation"
"""The problem's column that holds what its prompt shows of the environment."""
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a step brought, and where the episode stands."""

    step: StepResult
    total: float
    """Sum of the rewards so far: the episode's return once it is done."""


class EnvironmentSession:
    """An episode. Nothing happens before the first step, so a trajectory that never acts has no reward of anybody's."""

    def __init__(self, kind: EnvironmentKind, instance: EnvironmentInstance, columns: Mapping[str, Any]) -> None:
        self._kind = kind
        self._instance = instance
        self._columns = columns
        self._turn = asyncio.Lock()  # calls of one model turn act one after another, in their order
        self._begun = False
        self.steps = 0
        self.total = 0.0
        self.done = False

    async def step(self, action: str) -> Progress:
        """Acts; the first action begins the episode. Raises `EnvironmentFailure`.

        After the end an action changes nothing and is told so.
        """
        async with self._turn:
            if self.done:
                over = StepResult.refused("The episode is over; nothing can be done any more.", done=True)
                return Progress(step=over, total=self.total)
            if not self._begun:
                await self._begin()
                self._begun = True
            # Half surrogates, which models may write, can be encoded by no environment.
            result = await self._instance.step(action.encode("utf-8", "replace").decode())
            self.steps += 1
            self.total += result.reward
            self.done = result.done
            return Progress(step=result, total=self.total)

    async def _begin(self) -> None:
        columns = dict(self._columns)
        promised = columns.pop(FIRST_OBSERVATION, None)
        observation = await self._instance.reset(columns)
        if self._kind.first_observation and promised is not None and observation != promised:
            at = next((i for i, (a, b) in enumerate(zip(observation, promised, strict=False)) if a != b), None)
            at = min(len(observation), len(promised)) if at is None else at
            raise EnvironmentFailure(
                f"environment {self._kind.name} began a different episode from the one in the prompt: its first "
                f"observation differs from character {at} on, {_near(observation, at)} in place of "
                f"{_near(promised, at)}. Has the environment or its data changed since the dataset was prepared?",
                where=f"environment:{self._kind.name}",
            )


def _near(text: str, place: int) -> str:
    return repr(text[max(0, place - _SHOWN_CHARS // 4) : place + _SHOWN_CHARS])
