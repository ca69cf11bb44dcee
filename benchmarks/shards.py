"""Arrow parts against JSON lines: time to write and read, size, and one trajectory out of many.

10,000 trajectories of about 1,000 tokens with log-probs, masks and messages. The peer is what most rollout stores do:
one JSON object for each trajectory and line, by `orjson`, the fastest library for that. Arrow parts are written as in a
run: 64 groups each, flushed to the disk and renamed, so that no killed process can lose one. Processor time decides.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

from agentfly_lib.store.shards import PartRows, read_part, write_part
from agentfly_lib.types import FinishReason, Message, Problem, Segment, StopReason, Trajectory, TrajectoryGroup, Turn
from benchmarks.report import Finding, show
from benchmarks.timing import interleaved

__all__ = ["main"]

GROUPS = 1250
CHAINS = 8
GROUPS_PER_PART = 64


def main() -> bool:
    """Runs it; True if the bars are met."""
    groups = [_group(number) for number in range(GROUPS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writing = interleaved(
            {"arrow": lambda: _write_parts(folder, groups), "json": lambda: _write_lines(folder, groups)}
        )
        reading = interleaved({"arrow": lambda: _read_parts(folder), "json": lambda: _read_lines(folder)})
        if _read_parts(folder) != groups or _read_lines(folder) != groups:
            raise RuntimeError("what was read is not what was written")
        sizes = [sum(file.stat().st_size for file in folder.glob(pattern)) for pattern in ("*.arrow", "*.jsonl")]
        access = _random_access(folder)
    write, read = ({name: each.best_cpu for name, each in timed.items()} for timed in (writing, reading))
    findings = [
        Finding(what="write: JSON lines / Arrow, CPU", value=write["json"] / write["arrow"], unit="x", floor=2),
        Finding(what="read: JSON lines / Arrow, CPU", value=read["json"] / read["arrow"], unit="x", floor=4),
        Finding(what="size: Arrow / JSON lines", value=sizes[0] / sizes[1], unit="x", bar=0.25),
        Finding(what="one trajectory of an open part, median", value=1000 * access, unit="ms", bar=1.0),
        Finding(what="write 10,000 trajectories, CPU", value=write["arrow"], unit="s"),
        Finding(what="read 10,000 trajectories, CPU", value=read["arrow"], unit="s"),
        Finding(what="write 10,000 trajectories, wall", value=writing["arrow"].best_wall, unit="s"),
        Finding(what="size of 10,000 trajectories", value=sizes[0] / 2**20, unit="MiB"),
    ]
    return show("shards", findings, notes=f"orjson {orjson.__version__}; best of three, in turn, after a warm-up")


def _group(number: int) -> TrajectoryGroup:
    random = np.random.default_rng(number)
    problem = Problem(id=str(number), messages=({"role": "user", "content": f"What is {number} * 7? Use the tool."},))
    name = f"000000-{number:05d}"
    chains = tuple(_trajectory(name, problem, chain, random) for chain in range(CHAINS))
    return TrajectoryGroup(id=name, problem=problem, trajectories=chains)


def _trajectory(group: str, problem: Problem, chain: int, random: np.random.Generator) -> Trajectory:
    lengths = np.maximum(random.normal([120, 300, 180, 300, 100], 30).astype(int), 10)  # prompt, policy, tool, ...
    ends = np.cumsum(lengths)
    sampled = [False, True, False, True, False][: len(lengths)]
    sampled[-1] = True
    total = int(ends[-1])
    mask = np.zeros(total, np.bool_)
    turns = []
    for start, end, by_policy in zip(ends[:-1], ends[1:], sampled[1:], strict=True):
        mask[start:end] = by_policy
        turns.append(_turn(int(start), int(end), by_policy, random))
    ids = np.minimum(random.zipf(1.3, total), 150_000).astype(np.int32)  # words are distributed like this
    logprobs = np.where(mask, -random.exponential(0.5, total), np.nan).astype(np.float32)
    return Trajectory(
        id=f"{group}/{chain}",
        problem_id=problem.id,
        group_id=group,
        chain=chain,
        segments=(Segment(token_ids=ids, loss_mask=mask, logprobs=logprobs, turns=tuple(turns)),),
        stop=StopReason.FINISHED,
        metrics={"generate_seconds": float(random.exponential()), "tool_calls": 2.0},
    )


def _turn(start: int, end: int, by_policy: bool, random: np.random.Generator) -> Turn:
    words = " ".join(f"word{number}" for number in random.integers(0, 5000, (end - start) // 2))
    message: Message = {"role": "assistant" if by_policy else "tool", "content": words}
    finish = FinishReason.STOP if by_policy else None
    return Turn(
        message=message, start=start, end=end, sampled=by_policy, finish=finish, policy_version=0 if by_policy else None
    )


def _parts(groups: Sequence[TrajectoryGroup]) -> Iterator[Sequence[TrajectoryGroup]]:
    return (groups[first : first + GROUPS_PER_PART] for first in range(0, len(groups), GROUPS_PER_PART))


def _write_parts(folder: Path, groups: Sequence[TrajectoryGroup]) -> None:
    for number, part in enumerate(_parts(groups)):
        write_part(folder / f"part-{number:05d}.arrow", part, step=0)


def _read_parts(folder: Path) -> list[TrajectoryGroup]:
    return [group for path in sorted(folder.glob("*.arrow")) for group in read_part(path)]


def _write_lines(folder: Path, groups: Sequence[TrajectoryGroup]) -> None:
    for number, part in enumerate(_parts(groups)):
        with (folder / f"part-{number:05d}.jsonl").open("wb") as file:
            for group in part:
                for trajectory in group.trajectories:
                    file.write(orjson.dumps(_plain(group, trajectory), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _plain(group: TrajectoryGroup, trajectory: Trajectory) -> dict[str, object]:
    """What JSON can say of a trajectory of this benchmark; the log-probs of tokens that nobody sampled become null."""
    segment = trajectory.segments[0]
    return {
        "id": trajectory.id,
        "chain": trajectory.chain,
        "group": group.id,
        "problem": {"id": group.problem.id, "messages": group.problem.messages},
        "token_ids": segment.token_ids,
        "loss_mask": segment.loss_mask,
        "logprobs": segment.logprobs,
        "turns": [
            [turn.message, turn.start, turn.end, turn.sampled, turn.finish, turn.policy_version]
            for turn in segment.turns
        ],
        "stop": trajectory.stop,
        "metrics": trajectory.metrics,
    }


def _read_lines(folder: Path) -> list[TrajectoryGroup]:
    groups: dict[str, tuple[Problem, list[Trajectory]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                row = orjson.loads(line)
                problem = Problem(id=row["problem"]["id"], messages=tuple(row["problem"]["messages"]))
                groups.setdefault(row["group"], (problem, []))[1].append(_restored(row))
    return [
        TrajectoryGroup(id=name, problem=problem, trajectories=tuple(trajectories))
        for name, (problem, trajectories) in groups.items()
    ]


def _restored(row: dict[str, object]) -> Trajectory:
    turns = tuple(
        Turn(
            message=message,
            start=start,
            end=end,
            sampled=sampled,
            finish=finish and FinishReason(finish),
            policy_version=version,
        )
        for message, start, end, sampled, finish, version in row["turns"]  # type: ignore[attr-defined]
    )
    segment = Segment(
        token_ids=np.array(row["token_ids"], np.int32),
        loss_mask=np.array(row["loss_mask"], np.bool_),
        logprobs=np.array(row["logprobs"], np.float32),
        turns=turns,
    )
    return Trajectory(
        id=str(row["id"]),
        problem_id=str(row["group"]).rpartition("-")[2].lstrip("0") or "0",
        group_id=str(row["group"]),
        chain=row["chain"],  # type: ignore[arg-type]
        segments=(segment,),
        stop=StopReason(row["stop"]),
        metrics=row["metrics"],  # type: ignore[arg-type]
    )


def _random_access(folder: Path) -> float:
    """Seconds, the median over trajectories anywhere in an open part."""
    path = sorted(folder.glob("*.arrow"))[3]
    seconds = []
    with PartRows(path) as part:
        for row in np.random.default_rng(0).integers(0, len(part), 200):
            started = time.perf_counter()
            part.trajectory(int(row))
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
