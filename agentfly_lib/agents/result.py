"""What a run of an agent gives back."""

from __future__ import annotations

from dataclasses import dataclass

from agentfly_lib.types import Trajectory, TrajectoryGroup

__all__ = ["RunResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Trajectories with their rewards, conversation by conversation."""

    groups: tuple[TrajectoryGroup, ...]
    """One per conversation, holding its chains."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All chains, in the order of the conversations and then of the chains."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def rewards(self) -> list[float | None]:
        """One per trajectory; None where it was not or could not be scored."""
        return [trajectory.reward for trajectory in self.trajectories]
