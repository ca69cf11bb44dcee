"""Trajectories to imitate, taken from the shards of earlier runs: what is good enough, once, and not too many of one.

They are laid out as steps of the new run, each trajectory a group of its own, with shards, scores and manifests like
collected ones. So the learner, resume, replay and the ledger need to know nothing about where they came from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentfly_lib.configs.algorithm import AcceptedAdvantageConfig
from agentfly_lib.configs.data import ShardsDataConfig
from agentfly_lib.configs.run import RunConfig
from agentfly_lib.errors import ConfigError, DataError
from agentfly_lib.refs import ImitatedRef
from agentfly_lib.store.atomic import read_json
from agentfly_lib.store.layout import RunDirectory, StepDirectory, group_id
from agentfly_lib.store.manifest import RolloutStore, iter_groups
from agentfly_lib.store.score import Score, outcome_of
from agentfly_lib.store.scored import load_scored_groups, scored_steps
from agentfly_lib.store.scores import ScoreStore
from agentfly_lib.types import Problem, StopReason, Trajectory, TrajectoryGroup

__all__ = ["Selection", "check_tokens", "imitated", "lay_out", "select_trajectories"]

logger = logging.getLogger(__name__)

IMPORTED = "imported"
"""Name of the reward in the scores of what was laid out: the reward that it had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is imitated, in the order of runs, steps, groups and chains; and what was left out, and why."""

    chosen: tuple[tuple[Problem, Trajectory], ...]
    seen: int = 0
    unscored: int = 0
    """Failed, or without a reward."""
    too_low: int = 0
    truncated: int = 0
    repeated: int = 0
    """The same tokens were sampled for the same problem before."""
    surplus: int = 0
    """More than `per_problem`."""

    @property
    def ref(self) -> ImitatedRef:
        """What of it a run must go on with."""
        digest = hashlib.sha256()
        for _, trajectory in self.chosen:
            digest.update(f"{trajectory.id} {trajectory.problem_id} {trajectory.reward!r} ".encode())
            digest.update(_sampled(trajectory))
        return ImitatedRef(fingerprint=digest.hexdigest(), trajectories=len(self.chosen))

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"{len(self.chosen)} of {self.seen} trajectories: {self.too_low} below the reward, {self.unscored} "
            f"without one, {self.truncated} truncated, {self.repeated} repeated, {self.surplus} more than wanted"
        )


def imitated(config: RunConfig) -> tuple[ShardsDataConfig, AcceptedAdvantageConfig]:
    """What a recipe says about imitation. Raises `ConfigError` if it has problems to ask instead."""
    data, accepted = config.data, config.algorithm.advantage
    if not isinstance(data, ShardsDataConfig) or not isinstance(accepted, AcceptedAdvantageConfig):
        raise ConfigError(
            f"data.type={data.type!r} holds problems to ask, not trajectories to imitate; write data.type='shards' "
            "with data.runs, or train on the problems with agentfly train"
        )
    return data, accepted


def check_tokens(model: Path, data: ShardsDataConfig) -> None:
    """Raises `ConfigError` if a run's token ids are of another tokenizer than the model's."""
    own = _tokenizer_sha256(model)
    for path in data.runs:
        file = RunDirectory(path).model_file
        other = Path(read_json(file)["path"]) if file.exists() else None
        theirs = None if other is None else _tokenizer_sha256(other)
        if theirs is None or own is None:
            logger.warning("%s: its tokenizer no longer exists, so it cannot be compared with that of %s", path, model)
        elif theirs != own:
            raise ConfigError(
                f"data.runs: the tokens of {path} are those of {other}, whose tokenizer differs from that of {model}; "
                "imitate runs of the same family of models"
            )


def select_trajectories(data: ShardsDataConfig, accepted: AcceptedAdvantageConfig) -> Selection:
    """Reads every step that is scored to the end. Raises `DataError` if there is none, or nothing is good enough."""
    least = float("-inf") if accepted.min_reward == "none" else accepted.min_reward
    seen = unscored = too_low = truncated = repeated = 0
    known: set[tuple[str, bytes]] = set()
    good: list[tuple[Problem, Trajectory]] = []
    for directory in _steps(data.runs):
        for group in load_scored_groups(directory):
            for trajectory in group.trajectories:
                seen += 1
                key = (trajectory.problem_id, _sampled(trajectory))
                if trajectory.reward is None or trajectory.stop is StopReason.FAILED or not trajectory.num_sampled:
                    unscored += 1
                elif trajectory.reward < least:
                    too_low += 1
                elif trajectory.stop.truncated and not data.truncated:
                    truncated += 1
                elif accepted.distinct and key in known:
                    repeated += 1
                else:
                    known.add(key)
                    good.append((group.problem, trajectory))
    chosen = _best(good, data.per_problem)
    found = Selection(
        chosen=tuple(chosen),
        seen=seen,
        unscored=unscored,
        too_low=too_low,
        truncated=truncated,
        repeated=repeated,
        surplus=len(good) - len(chosen),
    )
    if not chosen:
        raise DataError(
            f"data.runs: nothing to imitate, {found.text}; lower algorithm.advantage.min_reward or name other runs"
        )
    return found


def lay_out(
    directory: StepDirectory,
    step: int,
    members: Sequence[tuple[Problem, Trajectory]],
) -> None:
    """Writes trajectories as the collected and scored rollouts of a step; what is there already is kept."""
    names = [group_id(step, index) for index in range(len(members))]
    store = RolloutStore.open(directory, step=step, policy_version=step, group_ids=names, chains=1)
    missing = set(store.missing)
    groups = [_group(name, *member) for name, member in zip(names, members, strict=True) if name in missing]
    if groups:
        store.append(groups)
    rollouts = store.finish()
    rewards = {f"{name}/0": trajectory.reward for name, (_, trajectory) in zip(names, members, strict=True)}
    scores = ScoreStore(directory, IMPORTED)
    missing_parts = {part.name for part in scores.missing_parts(rollouts)}
    for part, of_part in iter_groups(directory, rollouts):
        if part.name in missing_parts:
            scores.append(part.name, [_score(group.trajectories[0], rewards) for group in of_part])
    if not scores.complete:
        scores.finish(rollouts)


def _tokenizer_sha256(model: Path) -> str | None:
    file = model / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def _steps(runs: Sequence[Path]) -> list[StepDirectory]:
    found: list[StepDirectory] = []
    for path in runs:
        scored = scored_steps(RunDirectory(path))
        if not scored:
            raise DataError(f"data.runs: {path} has no scored step; name a run directory such as runs/demo")
        found += scored
    return found


def _best(good: Sequence[tuple[Problem, Trajectory]], limit: int | None) -> list[tuple[Problem, Trajectory]]:
    if limit is None:
        return list(good)
    places: dict[str, list[int]] = defaultdict(list)
    for place, (_, trajectory) in enumerate(good):
        places[trajectory.problem_id].append(place)
    kept: set[int] = set()
    for of_problem in places.values():
        of_problem.sort(key=lambda place: (-(good[place][1].reward or 0.0), good[place][1].num_sampled, place))
        kept.update(of_problem[:limit])
    return [member for place, member in enumerate(good) if place in kept]


def _sampled(trajectory: Trajectory) -> bytes:
    return b"|".join(segment.token_ids[segment.loss_mask].tobytes() for segment in trajectory.segments)


def _group(name: str, problem: Problem, trajectory: Trajectory) -> TrajectoryGroup:
    member = dataclasses.replace(
        trajectory, id=f"{name}/0", group_id=name, chain=0, attempt=0, reward=None, reward_parts={}
    )
    return TrajectoryGroup(id=name, problem=problem, trajectories=(member,))


def _score(trajectory: Trajectory, rewards: dict[str, float | None]) -> Score:
    reward = rewards[trajectory.id]
    return Score(trajectory_id=trajectory.id, outcome=outcome_of(trajectory.stop, reward), reward=reward)
