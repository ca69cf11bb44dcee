"""What solves ScienceWorld's experiments, as its simulator knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentfly_lib.envs.scienceworld import ScienceWorld

__all__ = ["scienceworld_solution"]


def scienceworld_solution(world: ScienceWorld, problem: Mapping[str, Any]) -> list[str]:
    """The simulator's own solution of a problem. The episode that was running is over."""
    server = world._server
    server.load(str(problem["task"]), int(problem["variation"]), "", True)
    return [str(action) for action in server.getGoldActionSequence()]
