"""When a run takes note of a checkpoint that is written in the background, and what it does about one that was not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

import tasks.update as subject
from agentfly_lib.configs import CheckpointConfig, LearnerConfig
from agentfly_lib.errors import ShardError
from agentfly_lib.pipeline import opening, saving
from agentfly_lib.pipeline.learning import Learning
from agentfly_lib.refs import CheckpointRef, LearnerRef, StepReport
from agentfly_lib.store.atomic import write_json
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.recorded import read_update
from agentfly_lib.store.scores import ScoreStore


class FakeLearner:
    """Ranks that write when they are told to; `fate` is what becomes of what was begun."""

    def __init__(self) -> None:
        self.begun: list[Path] = []
        self.saved: list[Path] = []
        self.fate: Any = "writing"

    def __call__(self, *_: Any) -> FakeLearner:
        return self

    async def begin_save(self, path: Path) -> None:
        self.begun.append(path)

    async def finish_save(self, *, wait: bool) -> tuple[bool, CheckpointRef | None]:
        if self.fate == "writing" and not wait:
            return False, None
        fate, self.fate = self.fate, "gone"
        if isinstance(fate, Exception):
            raise fate
        return True, None if fate == "gone" else _ref(self.begun[-1])

    async def update(self, _: Path, step: int) -> StepReport:
        return StepReport(step=step, policy_version=step + 1, weights_digest="w", metrics={}, seconds={})

    async def save(self, path: Path) -> CheckpointRef:
        self.saved.append(path)
        return _ref(path)


def _ref(path: Path) -> CheckpointRef:
    return CheckpointRef(path=path, policy_version=int(path.name), digest="d")


@pytest.fixture
def ranks() -> FakeLearner:
    return FakeLearner()


@pytest.fixture
def session(tmp_path: Path, ranks: FakeLearner, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    logged: list[int] = []
    made = SimpleNamespace(
        config=SimpleNamespace(
            learner=LearnerConfig(),
            checkpoint=CheckpointConfig(),
            run=SimpleNamespace(steps=4),
        ),
        directory=RunDirectory(tmp_path),
        tracker=SimpleNamespace(log_checkpoint=lambda path, *, version, digest: logged.append(version)),
        display=SimpleNamespace(stage=lambda name: nullcontext()),
        times=SimpleNamespace(outside=nullcontext),
        schedule=SimpleNamespace(since_checkpoint=lambda version: 1),
        learning=Learning(),
        logged=logged,
    )
    (tmp_path / "checkpoints").mkdir()

    monkeypatch.setattr(saving, "Learner", ranks)
    for name, value in {
        "current_session": lambda: made,
        "_announce": lambda *_: None,
        "settle": subject.settle.fn,
    }.items():
        monkeypatch.setattr(subject, name, value)
    return made


def held(version: int) -> LearnerRef:
    return LearnerRef(names=("rank",), namespace="n", policy_version=version)


def owed(session: SimpleNamespace) -> int | None:
    return session.learning.saving and session.learning.saving.version


async def test_the_run_goes_on_and_takes_note_later(session: SimpleNamespace, ranks: FakeLearner) -> None:
    await subject.checkpoint.fn(2, held(2))
    assert (owed(session), session.logged) == (2, [])
    await subject.settle(held(3), wait=False)
    assert (owed(session), session.logged) == (2, []), "it is still being written"
    ranks.fate = "done"
    await subject.settle(held(3), wait=False)
    assert (owed(session), session.logged, ranks.saved) == (None, [2], [])


async def test_the_next_checkpoint_waits_for_the_one_before(session: SimpleNamespace, ranks: FakeLearner) -> None:
    await subject.checkpoint.fn(1, held(1))
    await subject.checkpoint.fn(2, held(2))
    assert (owed(session), session.logged) == (2, [1])


async def test_the_last_one_is_waited_for(session: SimpleNamespace, ranks: FakeLearner) -> None:
    await subject.checkpoint.fn(4, held(4))
    assert (owed(session), session.logged) == (None, [4])


async def test_a_failure_is_raised_and_made_up_for_by_the_next_try(
    session: SimpleNamespace, ranks: FakeLearner
) -> None:
    await subject.checkpoint.fn(2, held(2))
    ranks.fate = ShardError("the disk is full")
    with pytest.raises(ShardError, match="the disk is full"):
        await subject.settle(held(3), wait=False)
    assert owed(session) == 2, "nothing was saved, so it is still owed"
    await subject.settle(held(3), wait=False)
    assert [path.name for path in ranks.saved] == ["000003"]
    assert (owed(session), session.logged) == (None, [3])


async def test_one_that_went_with_its_ranks_is_made_up_for(session: SimpleNamespace, ranks: FakeLearner) -> None:
    await subject.checkpoint.fn(2, held(2))
    ranks.fate = "gone"
    await subject.settle(held(3), wait=False)
    assert ([path.name for path in ranks.saved], session.logged) == (["000003"], [3])


async def test_a_failure_to_forget_old_ones_costs_no_checkpoint(
    session: SimpleNamespace, ranks: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("a disk that is slow to wake")

    await subject.checkpoint.fn(2, held(2))
    ranks.fate = "done"
    with monkeypatch.context() as once:
        once.setattr(saving, "forget", fail)
        with pytest.raises(OSError, match="slow to wake"):
            await subject.settle(held(3), wait=False)
    await subject.settle(held(3), wait=False)
    assert (owed(session), session.logged, ranks.saved) == (None, [2], [])


async def test_an_update_whose_checkpoint_cannot_be_noted_is_not_made_again(
    session: SimpleNamespace, ranks: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks hold what is recorded: they are neither ended nor trained."""
    report = StepReport(step=2, policy_version=3, weights_digest="w", metrics={}, seconds={})
    write_json(session.directory.step(2).update_file, report.model_dump(mode="json"))
    asked: list[int] = []

    async def living_learner(_session: Any, version: int, _learner: Any, *, again: bool) -> LearnerRef:
        assert again
        asked.append(version)
        return held(version)

    monkeypatch.setattr(saving, "living_learner", living_learner)
    assert await saving.update(session, 2, held(2), again=True) == (report, held(3))  # type: ignore[arg-type]
    assert asked == [3]
    assert session.learning.version == 3


async def test_an_update_names_the_reward_whose_scores_it_trained_on(
    session: SimpleNamespace, ranks: FakeLearner
) -> None:
    async def rest() -> None:
        """Engines have memory of their own."""

    session.keeper = SimpleNamespace(rest=rest)
    session.times.activity = SimpleNamespace(updating=nullcontext)
    ScoreStore(session.directory.step(1), "mine")
    report, learner = await saving.update(session, 1, held(1), again=False)  # type: ignore[arg-type]
    assert (report.reward, learner.policy_version, session.learning.version) == ("mine", 2, 2)
    assert read_update(session.directory.step(1)) == report


async def test_a_session_that_ends_early_waits_for_the_writer(session: SimpleNamespace, ranks: FakeLearner) -> None:
    await subject.checkpoint.fn(2, held(2))
    await saving.finish_early(session.learning.saving, session.config.learner)
    assert ranks.fate == "gone", "it was asked, and waited for"
    # A worker kills a cancelled run after 30 s, in which MLflow is waited for too.
    assert saving.END_SECONDS + opening._KILLED_DRAIN_SECONDS <= 20
