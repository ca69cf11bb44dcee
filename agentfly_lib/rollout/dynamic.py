"""Dynamic sampling: further problems in place of groups whose chains all did equally well.

    collect N groups -> wait for their scores -> count those with a signal -> ask for as many as are missing -> ...

What counts is the raw outcome, not the reward after shaping: a length penalty differs between any two chains. It ends
when there are enough, after a fixed number of refills, when there are no more problems, or when the stage's time is
over; the step then trains on what there is, and says so. The groups asked for lie in the manifest, so a collection that
was killed goes on where it was and comes to the same groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from agentfly_lib.configs.collection import SignalSamplingConfig
from agentfly_lib.errors import RewardError
from agentfly_lib.rollout.collector import Collected
from agentfly_lib.store.changes import looks_at
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.store.score import Score
from agentfly_lib.store.scored import scores_so_far
from agentfly_lib.types import Problem

__all__ = ["SignalReport", "collect_with_signal", "groups_with_signal", "raw_outcomes"]

logger = logging.getLogger(__name__)

SIGNAL_TOLERANCE = 1e-8

CollectRound = Callable[[Sequence[tuple[str, Problem]], float], Awaitable[Collected]]
"""Collects what is missing of (group id, problem) within so many seconds, without completing the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReport:
    """What came of a collection with dynamic sampling."""

    groups: int
    """Asked for in all."""
    with_signal: int
    refills: int
    """Times that further groups were asked for."""
    stopped: str | None = None
    """Why there are fewer groups with a signal than were wanted."""

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "rollout/dynamic_groups/count": float(self.groups),
            "rollout/dynamic_groups_with_signal/count": float(self.with_signal),
            "rollout/dynamic_refills/count": float(self.refills),
            "rollout/dynamic_incomplete/count": float(self.stopped is not None),
        }


async def collect_with_signal(
    store: RolloutStore,
    directory: StepDirectory,
    problems: Sequence[tuple[str, Problem]],
    *,
    wanted: int,
    config: SignalSamplingConfig,
    outcome: str | None,
    collect_round: CollectRound,
    seconds: float,
) -> tuple[Collected, SignalReport]:
    """Collect until `wanted` groups have a signal, or one of the limits is reached; the store is complete then.

    Args:
        problems: (group id, problem) in the order in which they may be asked for; the store has asked for the first.
        outcome: part of the reward that is the raw outcome; None for the reward itself.
        collect_round: see `CollectRound`.
        seconds: for everything, waiting for scores included; the scores are another's work.

    Raises what `collect_round` raises, and `RewardError` if the reward has no part of that name.
    """
    deadline = monotonic() + seconds
    whole: Collected | None = None
    while True:
        asked = problems[: store.manifest.problems]
        collected = await collect_round(asked, max(deadline - monotonic(), 0.001))
        whole = collected if whole is None else replace(collected, seconds=whole.seconds + collected.seconds)
        found = await _scores(directory, deadline)
        with_signal = len(groups_with_signal(found, outcome)) if found is not None else 0
        missing = wanted - with_signal
        stopped = None if missing <= 0 else _why_not(store, found, len(problems), config, deadline)
        if store.complete or missing <= 0 or stopped is not None:
            break
        more = problems[len(asked) : len(asked) + missing]
        await asyncio.to_thread(store.extend, [group_id for group_id, _ in more])
        logger.info(
            "%s: %d of %d groups have a signal, asking for %d more", directory.path, with_signal, wanted, missing
        )
    manifest = await asyncio.to_thread(store.finish)
    report = SignalReport(
        groups=manifest.problems, with_signal=with_signal, refills=len(manifest.refills), stopped=stopped
    )
    if stopped is not None:
        logger.warning(
            "%s: training on %d groups with a signal instead of %d: %s", directory.path, with_signal, wanted, stopped
        )
    return replace(whole, manifest=manifest), report


def groups_with_signal(scores: Mapping[str, Sequence[Score]], outcome: str | None) -> set[str]:
    """Groups in which at least two chains could be scored and did not do equally well (within 1e-8)."""
    found: set[str] = set()
    for group_id, of_group in scores.items():
        values = raw_outcomes(of_group, outcome)
        if len(values) > 1 and max(values) - min(values) > SIGNAL_TOLERANCE:
            found.add(group_id)
    return found


def raw_outcomes(scores: Sequence[Score], outcome: str | None) -> list[float]:
    """The raw outcome of every chain that could be scored. Raises `RewardError` if the reward has no such part."""
    values: list[float] = []
    for score in scores:
        if score.reward is None:
            continue
        if outcome is None:
            values.append(score.reward)
        elif outcome in score.parts:
            values.append(score.parts[outcome])
        else:
            raise RewardError(
                f"trajectory {score.trajectory_id} has no part {outcome!r} in its reward, which decides which "
                f"problems are chosen; its parts are {', '.join(score.parts) or 'none'}. Set `outcome` of "
                "rollout.dynamic_sampling and rollout.order to one of them"
            )
    return values


def _why_not(
    store: RolloutStore,
    scores: Mapping[str, Sequence[Score]] | None,
    available: int,
    config: SignalSamplingConfig,
    deadline: float,
) -> str | None:
    """Why no further groups can be asked for."""
    manifest = store.manifest
    if store.complete or monotonic() >= deadline:
        return "the time of the collection is over (rollout.stage_timeout_seconds)"
    if scores is None:
        return "the scores did not come in time"
    if len(manifest.refills) >= config.max_refills:
        return f"{config.max_refills} refills were made (rollout.dynamic_sampling.max_refills)"
    if manifest.problems >= available:
        return f"all {available} problems were asked for"
    return None


async def _scores(directory: StepDirectory, deadline: float) -> dict[str, list[Score]] | None:
    """Scores of everything that is stored, once they are there; None if they are not in time."""
    left = deadline - monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(left), contextlib.aclosing(looks_at(directory.score_manifest)) as looks:
            async for _ in looks:
                if (found := await asyncio.to_thread(scores_so_far, directory)) is not None:
                    return found
    return await asyncio.to_thread(scores_so_far, directory)
