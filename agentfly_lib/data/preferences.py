"""Preferences: of every group of chains the best and the worst, as a file that `datasets` and preference trainers read.

One row per problem with `prompt`, `chosen` and `rejected` as lists of messages, and where they come from:

    {"prompt": [{"role": "user", "content": "..."}], "chosen": [...], "rejected": [...],
     "chosen_reward": 1.0, "rejected_reward": 0.0, "problem_id": "...", "chosen_id": "000003-00001/4", ...}

The prompt is the problem as its data has it, without the system prompt and the tools of the recipe's agent. Messages
are what was said, in order, with tool results between the policy's turns. Their content is text: what is not (parts
with images, which hold them as `data:` URLs) is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentfly_lib.chat.pictures import with_files
from agentfly_lib.errors import DataError
from agentfly_lib.store.atomic import atomic_file
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.scored import load_scored_groups, scored_steps
from agentfly_lib.types import Message, StopReason, Trajectory, TrajectoryGroup

__all__ = ["export_preferences", "preference_pair"]

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_SCHEMA = pa.schema(
    [
        ("prompt", _MESSAGES),
        ("chosen", _MESSAGES),
        ("rejected", _MESSAGES),
        ("chosen_reward", pa.float64()),
        ("rejected_reward", pa.float64()),
        ("problem_id", pa.string()),
        ("chosen_id", pa.string()),
        ("rejected_id", pa.string()),
    ]
)
_BATCH_ROWS = 512


def export_preferences(runs: Sequence[Path], output: Path, *, margin: float = 0.0) -> tuple[int, int]:
    """Writes one Parquet file with a pair for every group whose best and worst reward differ by more than `margin`.

    Returns (pairs, groups looked at). The file appears whole or not at all. Raises `DataError` if there is no scored
    step, or no group gives a pair.
    """
    looked = pairs = 0
    with atomic_file(output) as temporary:
        with pq.ParquetWriter(temporary, _SCHEMA) as writer:
            batch: list[dict[str, Any]] = []
            for group in _groups(runs):
                looked += 1
                pair = preference_pair(group, margin=margin)
                if pair is None:
                    continue
                pairs += 1
                batch.append(pair)
                if len(batch) == _BATCH_ROWS:
                    writer.write_table(pa.Table.from_pylist(batch, _SCHEMA))
                    batch.clear()
            writer.write_table(pa.Table.from_pylist(batch, _SCHEMA))
        if not pairs:
            raise DataError(
                f"no preferences in {', '.join(map(str, runs))}: in none of {looked} groups do two rewards differ by "
                f"more than {margin:g}"
            )
    return pairs, looked


def preference_pair(group: TrajectoryGroup, *, margin: float = 0.0) -> dict[str, Any] | None:
    """The row of one group; None if fewer than two chains were scored, or their rewards are too close.

    Of equally good chains the one with the fewest tokens is chosen, of equally bad ones the first is rejected.
    """
    scored = [
        (trajectory.reward, trajectory)
        for trajectory in group.trajectories
        if trajectory.reward is not None and trajectory.stop is not StopReason.FAILED and trajectory.num_sampled
    ]
    if len(scored) < 2:
        return None
    best_reward, best = max(scored, key=lambda item: (item[0], -item[1].num_sampled, -item[1].chain))
    worst_reward, worst = min(scored, key=lambda item: (item[0], item[1].chain))
    if best_reward - worst_reward <= max(margin, 1e-8):
        return None
    return {
        "prompt": [_plain(message) for message in group.problem.messages],
        "chosen": _said(best),
        "rejected": _said(worst),
        "chosen_reward": best_reward,
        "rejected_reward": worst_reward,
        "problem_id": group.problem.id,
        "chosen_id": best.id,
        "rejected_id": worst.id,
    }


def _groups(runs: Sequence[Path]) -> Iterator[TrajectoryGroup]:
    for path in runs:
        scored = scored_steps(RunDirectory(path))
        if not scored:
            raise DataError(f"{path} has no scored step; name a run directory such as runs/demo")
        for step in scored:
            yield from load_scored_groups(step)


def _said(trajectory: Trajectory) -> list[dict[str, str]]:
    return [_plain(message) for message in with_files(trajectory.messages, trajectory.pictures)]


def _plain(message: Message) -> dict[str, str]:
    """Role and content as text that UTF-8 can carry (a model may sample half of a surrogate pair)."""
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content)
    return {"role": str(message["role"]), "content": text.encode("utf-8", "replace").decode()}
