"""Arrow parts against JSON lines: time to write and read, size, and one trajectory out of many.

10,000 trajectories of about 1,000 tokens with log-probs, masks and messages. The peer is what most rollout stores do:
one JSON object for each trajectory and line, by `orjson`, the fastest library for that. It writes Python lists, as most
do, which are made before the clock starts, and is held against the bars; what `orjson` makes of numpy arrays as they
are stands beside it. Both sides build finished trajectories when they read. Arrow parts are written and read as in a
run: 64 groups each, flushed to the disk and renamed, so that no killed process can lose one, and checked against their
SHA-256. Processor time decides.

`LZ4 alone` compresses the same bytes of tokens, log-probs, versions and messages, and does nothing else: no part can be
written in less.
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
import pyarrow as pa

from agentfly_lib.store.shards import PartInfo, PartRows, read_part, write_part
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
        arrow, lists, arrays = (Path(name) / each for each in ("arrow", "lists", "arrays"))
        for folder in (arrow, lists, arrays):
            folder.mkdir()
        parts = _write_parts(arrow, groups)
        plain = [[_plain(group, each) for group in part for each in group.trajectories] for part in _parts(groups)]
        listed = [[_listed(row) for row in part] for part in plain]
        writing = interleaved(
            {
                "arrow": lambda: _write_parts(arrow, groups),
                "lists": lambda: _write_lines(lists, listed),
                "arrays": lambda: _write_lines(arrays, plain),
            }
        )
        reading = interleaved(
            {
                "arrow": lambda: _read_parts(arrow, parts),
                "lists": lambda: _read_lines(lists),
                "parsed": lambda: _parse_lines(lists),
            }
        )
        if not all(_read_parts(arrow, parts) == groups == _read_lines(folder) for folder in (lists, arrays)):
            raise RuntimeError("what was read is not what was written")
        buffers = _large_buffers(arrow)
        alone = interleaved({"lz4": lambda: _compress(buffers)})["lz4"].best_cpu
        size, of_lists, of_arrays = (_size(folder) for folder in (arrow, lists, arrays))
        access = _random_access(arrow, parts[3])
    write, read = ({name: each.best_cpu for name, each in timed.items()} for timed in (writing, reading))
    count = f"{GROUPS * CHAINS:,} trajectories"
    findings = [
        Finding(what="write: JSON lines / Arrow, CPU", value=write["lists"] / write["arrow"], unit="x", floor=2),
        Finding(what="write: JSON lines of arrays / Arrow, CPU", value=write["arrays"] / write["arrow"], unit="x"),
        Finding(what="write: JSON lines / LZ4 alone, CPU", value=write["lists"] / alone, unit="x"),
        Finding(what="read: JSON lines / Arrow, CPU", value=read["lists"] / read["arrow"], unit="x", floor=4),
        Finding(what="read: JSON lines only parsed / Arrow, CPU", value=read["parsed"] / read["arrow"], unit="x"),
        Finding(what="size: Arrow / JSON lines", value=size / of_lists, unit="x", bar=0.25),
        Finding(what="size: Arrow / JSON lines of arrays", value=size / of_arrays, unit="x"),
        Finding(what="one trajectory of an open part, median, CPU", value=1000 * access, unit="ms", bar=1.0),
        Finding(what=f"write {count}, CPU", value=write["arrow"], unit="s"),
        Finding(what=f"LZ4 alone of {count}, CPU", value=alone, unit="s"),
        Finding(what=f"read {count}, CPU", value=read["arrow"], unit="s"),
        Finding(what=f"write {count}, wall", value=writing["arrow"].best_wall, unit="s"),
        Finding(what=f"size of {count}", value=size / 2**20, unit="MiB"),
    ]
    notes = f"orjson {orjson.__version__} of Python lists, and of numpy arrays beside; best of three, in turn"
    return show("shards", findings, notes=notes)


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


def _write_parts(folder: Path, groups: Sequence[TrajectoryGroup]) -> list[PartInfo]:
    return [write_part(folder / f"part-{number:05d}.arrow", part, step=0) for number, part in enumerate(_parts(groups))]


def _read_parts(folder: Path, parts: Sequence[PartInfo]) -> list[TrajectoryGroup]:
    return [group for part in parts for group in read_part(folder / part.name, part)]


def _write_lines(folder: Path, parts: Sequence[Sequence[dict[str, object]]]) -> None:
    for number, rows in enumerate(parts):
        with (folder / f"part-{number:05d}.jsonl").open("wb") as file:
            for row in rows:
                file.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _listed(row: dict[str, object]) -> dict[str, object]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


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


def _parse_lines(folder: Path) -> None:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)


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


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _large_buffers(folder: Path) -> list[pa.Buffer]:
    """What is worth compressing in the parts, as they hold it: a buffer for each column and record batch."""
    buffers = []
    for path in sorted(folder.iterdir()):
        reader = pa.ipc.open_file(path)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            buffers += [batch[name].values.buffers()[1] for name in ("token_ids", "logprobs", "loss_mask", "versions")]
            buffers.append(batch["turns"].buffers()[2])
    return buffers


def _compress(buffers: Sequence[pa.Buffer]) -> None:
    codec = pa.Codec("lz4")
    for buffer in buffers:
        codec.compress(buffer)


def _random_access(folder: Path, part: PartInfo) -> float:
    """Processor seconds, the median over trajectories anywhere in an open part."""
    seconds = []
    with PartRows(folder / part.name) as rows:
        for row in np.random.default_rng(0).integers(0, len(rows), 200):
            started = time.process_time()
            rows.trajectory(int(row))
            seconds.append(time.process_time() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
