"""Train again on the stored rollouts of a run, from the shards alone, and compare what comes out."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentfly_lib.configs import LearnerConfig
from agentfly_lib.errors import UserError
from agentfly_lib.pipeline.session import Session
from agentfly_lib.refs import CheckpointRef, LearnerRef
from agentfly_lib.store.recorded import read_update
from agentfly_lib.training.checkpoint import CheckpointState, checkpoint_at, read_state
from agentfly_lib.training.ranks import Learner, ensure_learner

__all__ = ["ReplayReport", "ReplayedStep", "replay", "require_same_shape"]

_WEIGHTS: dict[bool | None, str] = {
    True: ", the same weights as the checkpoint",
    False: ", OTHER weights than the checkpoint",
    None: "",
}


class ReplayedStep(BaseModel):
    """One update made again."""

    model_config = ConfigDict(frozen=True)

    step: int
    log_probs: bool
    """The log-probs of fixed tokens under the new weights equal those of the run, bit for bit."""
    weights: bool | None
    """All weights equal those of the run's checkpoint of this version; None where none was kept."""

    @property
    def same(self) -> bool:
        return self.log_probs and self.weights is not False


class ReplayReport(BaseModel):
    """What a replay found."""

    model_config = ConfigDict(frozen=True)

    run: str
    started_from: str
    steps: tuple[ReplayedStep, ...]
    output: Path | None

    @property
    def same(self) -> bool:
        return all(step.same for step in self.steps)

    @property
    def text(self) -> str:
        """For a terminal."""
        lines = [f"{self.run}: trained again on the stored rollouts, from {self.started_from}"]
        for step in self.steps:
            log_probs = "the same log-probs" if step.log_probs else "OTHER log-probs"
            lines.append(f"step {step.step}: {log_probs}{_WEIGHTS[step.weights]}")
        verdict = "bit for bit the same" if self.same else "not the same: other hardware, libraries, or changed files"
        lines.append(verdict)
        if self.output is not None:
            lines.append(f"checkpoint: {self.output}")
        return "\n".join(lines)


async def replay(session: Session, first: int, last: int, output: Path | None) -> ReplayReport:
    """Makes the updates of the steps `first` to `last` again, from the checkpoint of version `first`."""
    start = checkpoint_at(session.directory.checkpoint(first)) if first else None
    if start is not None:
        require_same_shape(read_state(start.path), session.config.learner, start.path)
    await session.cluster.start()
    learner = Learner(await _fresh_learner(session, start), session.config.learner)
    try:
        steps = []
        with session.display.stage("replay", total=last - first + 1) as bar:
            for step in range(first, last + 1):
                steps.append(await _again(session, learner, step))
                bar.update(completed=len(steps))
        saved = None if output is None else (await learner.save(output / f"{last + 1:06d}")).path
    finally:
        await asyncio.to_thread(learner.close)
    return ReplayReport(
        run=session.config.run.name,
        started_from="the starting model" if start is None else str(start.path),
        steps=tuple(steps),
        output=saved,
    )


def require_same_shape(state: CheckpointState, learner: LearnerConfig, path: Path) -> None:
    """Raises `UserError` for a checkpoint of another number of ranks or ZeRO stage than the config's.

    Sums then have another order: the updates agree to rounding, and a replay, which compares bits, would prove nothing.
    """
    wrote, wants = (state.ranks, state.zero_stage), (learner.ranks, learner.zero_stage)
    if wrote != wants:
        raise UserError(
            f"{path} was written by {wrote[0]} rank(s) with ZeRO {wrote[1]}, and the config asks for {wants[0]} "
            f"rank(s) with ZeRO {wants[1]}: training again would agree to rounding, not bit for bit. Replay from a "
            "checkpoint that the config's shape has written"
        )


async def _fresh_learner(session: Session, start: CheckpointRef | None) -> LearnerRef:
    """Ranks that hold the version to start from; those of an earlier try hold another one and are ended."""
    name = f"{session.config.run.name}-replay"
    while True:
        ref = await ensure_learner(session.config, session.model, start, run_name=name, namespace=session.namespace)
        if ref.policy_version == (start.policy_version if start else 0):
            return ref
        await asyncio.to_thread(Learner(ref, session.config.learner).close)


async def _again(session: Session, learner: Learner, step: int) -> ReplayedStep:
    directory, version = session.directory.step(step), step + 1
    stored = await asyncio.to_thread(read_update, directory)
    report = await learner.update(directory.path, step)
    kept = session.directory.checkpoint(version) / "hf" / "model.safetensors"
    weights = None
    if kept.exists():
        exported = session.exchange.folder / "replay.safetensors"
        await learner.export(exported, version)
        weights = await asyncio.to_thread(lambda: _tensors(exported) == _tensors(kept))
    return ReplayedStep(step=step, log_probs=report.weights_digest == stored.weights_digest, weights=weights)


def _tensors(path: Path) -> tuple[dict[str, Any], str]:
    """Names, types and places of a safetensors file's tensors, and a hash of their bytes.

    The files themselves may differ: their writer puts the entries of the metadata in any order.
    """
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return header, digest.hexdigest()
