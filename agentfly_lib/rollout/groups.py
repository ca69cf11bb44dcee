"""Groups in the making: which chains are still to be run, in what order, and which groups are whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentfly_lib.types import Problem, Trajectory, TrajectoryGroup

__all__ = ["ChainPlace", "OpenGroups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlace:
    """One trajectory to be made: which problem, and which of its chains."""

    group_id: str
    group_index: int
    """The problem's place in the whole collection, stored groups included."""
    chain: int
    problem: Problem


class OpenGroups:
    """Hands out places once each, problem by problem, and collects what became of them."""

    def __init__(self, problems: Sequence[tuple[int, str, Problem]], chains: int) -> None:
        """Take (index, group id, problem) of every group to be made."""
        self._problems = {group_id: problem for _, group_id, problem in problems}
        self._chains = chains
        self._ended: dict[str, dict[int, Trajectory]] = {group_id: {} for group_id in self._problems}
        self._places = (
            ChainPlace(group_id=group_id, group_index=index, chain=chain, problem=problem)
            for index, group_id, problem in problems
            for chain in range(chains)
        )

    def __len__(self) -> int:
        """Groups that are not whole yet."""
        return len(self._ended)

    @property
    def places(self) -> Iterator[ChainPlace]:
        """The places that nobody has taken yet; one iterator, shared by all who take from it."""
        return self._places

    def add(self, place: ChainPlace, trajectory: Trajectory) -> TrajectoryGroup | None:
        """Put a trajectory in its place; the group, if it is whole now.

        Raises:
            ValueError: the place is taken.
        """
        ended = self._ended.get(place.group_id)
        if ended is None or place.chain in ended:
            raise ValueError(f"chain {place.chain} of group {place.group_id} ended twice")
        ended[place.chain] = trajectory
        if len(ended) < self._chains:
            return None
        del self._ended[place.group_id]
        return TrajectoryGroup(
            id=place.group_id,
            problem=self._problems.pop(place.group_id),
            trajectories=tuple(ended[chain] for chain in range(self._chains)),
        )

    def unfinished(self) -> dict[str, int]:
        """Group id -> chains that had ended, of every group that is not whole."""
        return {group_id: len(ended) for group_id, ended in self._ended.items()}
