"""The learner as Ray actors: found again, replaced when they do not fit, and never waited for when they are dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

pytest.importorskip("deepspeed")
pytest.importorskip("ray")

from agentfly_lib.errors import LearnerError, ModelError  # noqa: E402
from agentfly_lib.refs import LearnerRef, ModelRef  # noqa: E402
from agentfly_lib.store.layout import StepDirectory  # noqa: E402
from agentfly_lib.store.learned import read_learned  # noqa: E402
from agentfly_lib.training import ranks as subject  # noqa: E402
from agentfly_lib.training.ranks import Learner, ensure_learner  # noqa: E402

NAMESPACE = "learner-tests"
LOOPBACK = {"127.0.0.1", "::1"}


@pytest.fixture
async def ranks(factories: ModuleType, tiny_model: Path) -> AsyncIterator[Any]:
    """Ensures a learner of two ranks; they are ended with the test."""
    model = ModelRef(path=tiny_model, fingerprint="tiny")
    refs: list[tuple[LearnerRef, Any]] = []

    async def ensure(*, checkpoint: Any = None, model: ModelRef = model, **learner: Any) -> tuple[Learner, LearnerRef]:
        config = factories.run_config(learner={"ranks": 2, "zero_stage": 2} | learner)
        ref = await ensure_learner(config, model, checkpoint, run_name="test", namespace=NAMESPACE)
        refs.append((ref, config.learner))
        return Learner(ref, config.learner), ref

    yield ensure
    for ref, config in refs:
        Learner(ref, config).close()


@pytest.fixture
def scored_step(tmp_path: Path, factories: ModuleType) -> Path:
    """A step directory with complete rollouts and scores."""
    from agentfly_lib.store.manifest import RolloutStore
    from agentfly_lib.store.score import Score
    from agentfly_lib.store.scores import ScoreStore
    from agentfly_lib.types import Outcome

    groups = factories.step_groups(0)
    directory = StepDirectory(tmp_path / "steps" / "000000")
    rollouts = RolloutStore.open(
        directory, step=0, policy_version=0, group_ids=[group.id for group in groups], chains=4
    )
    part = rollouts.append(groups)
    assert part is not None
    manifest = rollouts.finish()
    scores = ScoreStore(directory, "test")
    scores.append(
        part.name,
        [
            Score(trajectory_id=item.id, outcome=Outcome.SCORED, reward=item.reward)
            for group in groups
            for item in group.trajectories
        ],
    )
    scores.finish(manifest)
    return directory.path


@pytest.mark.timeout(300)
async def test_the_life_of_a_learner(
    ranks: Any,
    factories: ModuleType,
    scored_step: Path,
    tmp_path: Path,
    listening: Callable[[int], set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner, ref = await ranks()
    assert ref.policy_version == 0
    assert len(ref.names) == 2
    pids = [status.pid for status in await learner.status()]
    assert [listening(pid) - LOOPBACK for pid in pids] == [set(), set()]

    # Asked again: the same processes. Asked for the same step again: the same report, and no second update.
    report = await learner.update(scored_step, 0)
    assert report.metrics["train/unrecorded_steps/count"] == 0
    seen = read_learned(
        StepDirectory(scored_step), [f"000000-{group}/{chain}" for group in range(4) for chain in range(4)]
    )
    assert len(seen) == report.metrics["train/samples/count"]  # whichever rank trained on it
    assert sum(np.isfinite(each.logprobs).sum() for each in seen.values()) == report.metrics["train/loss_tokens/count"]
    _, again = await ranks()
    assert again.policy_version == 1
    assert [status.pid for status in await learner.status()] == pids
    assert await learner.update(scored_step, 0) == report

    canary = await learner.canary()
    assert len(canary.logprobs) == len(canary.token_ids) - 1
    await learner.export(tmp_path / "weights.safetensors", 1)
    assert (tmp_path / "weights.safetensors").exists()
    checkpoint = await learner.save(tmp_path / "000001")

    # At work, a rank still says how far it is: at a pass and a step, and what it was measured by. And whether it is
    # writing a checkpoint, for a run that is cancelled does not wait for its update.
    import ray

    actor = ray.get_actor(ref.names[0], namespace=NAMESPACE)
    beats = ray.get(actor.beat.remote(), timeout=20)
    assert beats >= 3
    busy = actor.__ray_call__.remote(lambda rank: time.sleep(3))
    assert ray.get([actor.beat.remote(), actor.finish_checkpoint.remote(10.0)], timeout=20) == [beats, (True, None)]
    assert ray.wait([busy], timeout=0)[0] == []
    ray.get(busy)

    # A refusal harms nobody; the ranks stay.
    with pytest.raises(LearnerError, match="it needs version 7"):
        await learner.update(scored_step, 7)
    assert [status.pid for status in await learner.status()] == pids

    # One rank is killed: noticed at once, by name, the other one is ended too, nobody waits for the time limit.
    os.kill(pids[1], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(LearnerError, match="test-learner-1"):
        await learner.canary()
    assert time.monotonic() - start < 10

    # The same command again: new processes that hold what the checkpoint holds.
    learner, ref = await ranks(checkpoint=checkpoint)
    assert ref.policy_version == 1
    assert not set(pids) & {status.pid for status in await learner.status()}
    assert (await learner.canary()).logprobs == canary.logprobs

    # Nobody calls one any more: its process ends by itself.
    first, second = [psutil.Process(status.pid) for status in await learner.status()]
    ray.get_actor(ref.names[1], namespace=NAMESPACE).__ray_call__.remote(lambda rank: rank.orphan.limit(0.0))
    _, alive = psutil.wait_procs([second], timeout=30)
    assert alive == []

    # A rank that is stopped dies of nothing: it is noticed by its silence, and ended.
    for constant, value in {"BEAT_SECONDS": 0.1, "SILENT_SECONDS": 1.0}.items():
        monkeypatch.setattr(subject, constant, value)
    first.suspend()
    alone = Learner(ref.model_copy(update={"names": ref.names[:1]}), factories.run_config().learner)
    with pytest.raises(
        LearnerError, match=r"update: test-learner-0 did not answer for 1 s.*run the same command again"
    ):
        await alone.update(scored_step, 1)
    _, alive = psutil.wait_procs([first], timeout=30)
    assert alive == []


@pytest.mark.timeout(300)
async def test_a_start_that_cannot_work_says_why(ranks: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        await ranks(model=ModelRef(path=tmp_path, fingerprint="none"), ranks=1)
    with pytest.raises(LearnerError, match="took longer than"):
        await ranks(start_timeout_seconds=0.2)
