"""Runs made by hand: trajectories whose tokens are bytes, in real shards with real scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from starlette.testclient import TestClient

from agentfly_lib.chat import StreamDecoder
from agentfly_lib.configs import load_config
from agentfly_lib.store import RolloutStore, Score, ScoreStore, outcome_of, read_rollout_manifest
from agentfly_lib.store.layout import RunDirectory, StepDirectory
from agentfly_lib.store.learned import write_learned
from agentfly_lib.types import (
    FinishReason,
    Problem,
    Segment,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentfly_lib.viewer.web import viewer_app
from agentfly_lib.viewer.web.pages import Viewer
from agentfly_lib.viewer.web.shelf import Shelf

HOSTILE = "</pre><script>alert(1)</script>\x1b[2J\u202e"


class Bytes:
    """Every byte is a token."""

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(lambda ids: bytes(ids).decode(errors="replace"), chr)


def trajectory(group: str, chain: int, *, reply: str = "4 é", tool: str | None = "double", **changes) -> Trajectory:
    prompt, called, result = b"2+2? ", b"[double 2]", b" T 4 "
    pieces = [(called, True), (result, False)] if tool else []
    pieces.append((reply.encode(), True))
    ids, mask, turns = list(prompt), [False] * len(prompt), []
    for data, sampled in pieces:
        start = len(ids)
        ids += data
        mask += [sampled] * len(data)
        message = {"role": "assistant", "content": data.decode()}
        if not sampled:
            message = {"role": "tool", "name": tool, "content": "4"}
        extra = {"finish": FinishReason.STOP, "policy_version": 3} if sampled else {}
        turns.append(Turn(message=message, start=start, end=len(ids), sampled=sampled, seconds=0.5, **extra))
    segment = Segment(
        token_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask),
        logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
        turns=tuple(turns),
    )
    base = Trajectory(
        id=f"{group}/{chain}",
        problem_id="p",
        group_id=group,
        chain=chain,
        segments=(segment,),
        stop=StopReason.FINISHED,
        metrics={"seconds": 1.5},
    )
    return replace(base, **changes)


def write_step(
    run: RunDirectory,
    step: int,
    groups: list[TrajectoryGroup],
    rewards=None,
    directory: StepDirectory | None = None,
) -> None:
    """Every group a part of its own; scored with the rewards, by trajectory, if there are any."""
    directory = directory or run.step(step)
    chains = len(groups[0].trajectories)
    store = RolloutStore.open(
        directory, step=step, policy_version=step, group_ids=[group.id for group in groups], chains=chains
    )
    for group in groups:
        store.append([group])
    store.finish()
    if rewards is None:
        return
    scores, rollouts = ScoreStore(directory, "r"), read_rollout_manifest(directory)
    for part, group in zip(rollouts.parts, groups, strict=True):
        scores.append(
            part.name,
            [
                Score(trajectory_id=each.id, outcome=outcome_of(each.stop, rewards[each.id]), reward=rewards[each.id])
                for each in group.trajectories
            ],
        )
    scores.finish(rollouts)


def group(name: str, *trajectories: Trajectory, question: str = "2+2?", problem: str = "p") -> TrajectoryGroup:
    trajectories = tuple(replace(each, problem_id=problem) for each in trajectories)
    asked = Problem(id=problem, messages=({"role": "user", "content": question},), columns={"answer": question})
    return TrajectoryGroup(id=name, problem=asked, trajectories=trajectories)


def record(run: RunDirectory, step: int, old: float = -0.6, new: float = -0.4) -> None:
    """What an update saw: every sampled token at these log-probs, with the advantages of its training."""
    from agentfly_lib.store.scored import load_scored_groups
    from agentfly_lib.training.samples import build_samples

    built = build_samples(load_scored_groups(run.step(step)), load_config(run.config_file).algorithm)
    counts = [sample.num_loss_tokens for sample in built.samples]
    write_learned(
        run.step(step),
        built.samples,
        old_logprobs=[np.full(count, old) for count in counts],
        logprobs=[np.full(count, new) for count in counts],
    )


def shelf(run: RunDirectory, *, tokens: bool = True, prefix: str = "") -> Shelf:
    return Shelf(run.path, load_chat=lambda: Bytes() if tokens else None, prefix=prefix)


def browse(run: RunDirectory, other: RunDirectory | None = None) -> TestClient:
    viewer = Viewer(shelf(run), None if other is None else shelf(other, prefix="/other"))
    return TestClient(viewer_app(viewer, hosts=["127.0.0.1"]), base_url="http://127.0.0.1")
