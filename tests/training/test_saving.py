"""Checkpoints in the background: training goes on, and what a writer meets is neither lost nor left behind."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402

pytest.importorskip("deepspeed")
from safetensors.torch import load_file  # noqa: E402

from agentfly_lib.errors import ShardError  # noqa: E402
from agentfly_lib.training import saving  # noqa: E402
from agentfly_lib.training.checkpoint import newest_checkpoint, verify_checkpoint  # noqa: E402
from agentfly_lib.training.engine import give_back_cache  # noqa: E402

Make = Callable[..., Any]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writers wait for this event before they write."""
    event, write = threading.Event(), saving._write

    def wait(files: Any) -> None:
        assert event.wait(120)
        write(files)

    monkeypatch.setattr(saving, "_write", wait)
    yield event
    event.set()


@pytest.mark.parametrize("stage", [0, 3])
def test_training_goes_on_while_a_checkpoint_is_written(
    learner: Make,
    factories: ModuleType,
    tmp_path: Path,
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    stage: int,
) -> None:
    idle: list[torch.device] = []
    monkeypatch.setattr("agentfly_lib.training.learner.give_back_cache", idle.append)
    subject = learner(learner={"zero_stage": stage})
    subject.update_from(factories.step_groups(0), 0)
    subject.begin_checkpoint(tmp_path / "000001")
    assert idle == [subject.device] * 3, "after its start, the update and the copying"
    digests = [subject.update_from(factories.step_groups(step), step).weights_digest for step in (1, 2)]
    assert subject.finish_checkpoint(seconds=0.0) == (False, None)
    assert newest_checkpoint(tmp_path, tidy=False) is None
    gate.set()
    done, ref = subject.finish_checkpoint(seconds=120.0)
    assert done
    assert ref == newest_checkpoint(tmp_path)
    assert ref.policy_version == 1
    verify_checkpoint(ref)
    assert subject.finish_checkpoint(seconds=0.0) == (True, None)

    resumed = learner(checkpoint=ref, learner={"zero_stage": stage})
    resumed.export_weights(tmp_path / "resumed.safetensors", 1)
    saved, held = load_file(ref.path / "hf" / "model.safetensors"), load_file(tmp_path / "resumed.safetensors")
    assert all(torch.equal(held[name], value) for name, value in saved.items())
    assert [resumed.update_from(factories.step_groups(step), step).weights_digest for step in (1, 2)] == digests


def test_an_error_of_the_writer_is_raised_once_and_leaves_the_older_checkpoint(
    learner: Make, factories: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = learner()
    older = factories.saved(subject, tmp_path / "000000")
    subject.update_from(factories.step_groups(0), 0)
    with monkeypatch.context() as patch:

        def full(_files: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(saving, "_write", full)
        subject.begin_checkpoint(tmp_path / "000001")
        with pytest.raises(ShardError, match=r"000001: No space left on device; free space there"):
            subject.finish_checkpoint(seconds=120.0)
    assert [item.name for item in tmp_path.iterdir()] == ["000000"]
    assert newest_checkpoint(tmp_path) == older
    assert subject.finish_checkpoint(seconds=0.0) == (True, None)
    subject.begin_checkpoint(tmp_path / "000001")
    assert subject.finish_checkpoint(seconds=120.0)[1] == newest_checkpoint(tmp_path)


def test_a_second_save_waits_for_the_first_and_tells_its_error(
    learner: Make, factories: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = learner()

    def broken(_files: Any) -> None:
        raise ValueError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(saving, "_write", broken)
        subject.begin_checkpoint(tmp_path / "000000")
        with pytest.raises(Exception, match="out of luck"):
            subject.begin_checkpoint(tmp_path / "000000")
    assert factories.saved(subject, tmp_path / "000000") == newest_checkpoint(tmp_path)


def test_who_asks_while_one_is_begun_is_not_told_that_there_is_none(
    learner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread asks beside everything else that a rank does."""
    subject, answers = learner(), []
    snapshot = subject.engine.snapshot

    def asked(*arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as other:
            answers.append(other.submit(subject.finish_checkpoint, seconds=0.01).result(timeout=60))
        return snapshot(*arguments)

    monkeypatch.setattr(subject.engine, "snapshot", asked)
    subject.begin_checkpoint(tmp_path / "000000")
    assert answers == [(False, None)]
    assert subject.finish_checkpoint(seconds=120.0) == (True, newest_checkpoint(tmp_path))


def test_closing_waits_for_the_writer(learner: Make, tmp_path: Path, gate: threading.Event) -> None:
    subject = learner()
    subject.begin_checkpoint(tmp_path / "000000")
    threading.Timer(0.2, gate.set).start()
    subject.close()
    assert newest_checkpoint(tmp_path) is not None


def test_an_idle_rank_gives_a_gpu_back_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(None))
    give_back_cache(torch.device("cpu"))
    assert given == []
    give_back_cache(torch.device("cuda", 0))
    assert given == [None]


def test_copies_are_whole_alike_and_nobody_elses() -> None:
    weight = torch.arange(6.0)
    state = {"a": weight, "b": [weight.view(6), weight[2:4]], "plain": {"x": [1]}}
    copied = saving.host_copy(state)
    weight.zero_()
    state["plain"]["x"].append(2)
    assert copied["a"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert copied["b"][0] is copied["a"], "what was one tensor is saved once"
    assert copied["b"][1].tolist() == [2.0, 3.0]
    assert copied["plain"] == {"x": [1]}
