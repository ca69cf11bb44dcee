"""Offloaded state gives the same weights; what it cannot be had with is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from agentfly_lib.configs import LearnerConfig, OffloadConfig
from agentfly_lib.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"offload": {"optimizer": "cpu"}}, "offload.optimizer needs ZeRO"),
        ({"zero_stage": 2, "offload": {"parameters": "cpu"}}, "offload.parameters needs zero_stage=3, not 2"),
        (
            {"zero_stage": 2, "offload": {"optimizer": "nvme", "nvme_path": "/x"}},
            'offload.optimizer="nvme" needs zero_stage=3',
        ),
        ({"zero_stage": 3, "offload": {"optimizer": "nvme"}}, "needs offload.nvme_path"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LearnerConfig.model_validate(values)


@pytest.mark.stack
@pytest.mark.parametrize(
    ("stage", "offload"),
    [
        (2, {"optimizer": "cpu"}),
        (3, {"optimizer": "cpu", "parameters": "cpu"}),
    ],
    ids=["2", "3-with-parameters"],
)
def test_the_same_weights_and_a_bit_exact_resume(
    learner: Callable[..., Any], factories: ModuleType, tmp_path: Path, stage: int, offload: dict[str, str]
) -> None:
    pytest.importorskip("deepspeed")
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    results = []
    for where in ({}, offload):
        sections = {"learner": {"zero_stage": stage, "offload": where}, "optim": {"lr": 1e-2, "eps": 1e-3}}
        subject = learner(**sections)
        for step in range(2):
            subject.update_from(factories.step_groups(step), step)
        ref = factories.saved(subject, tmp_path / f"{len(results)}" / "000002")
        reports = [subject.update_from(factories.step_groups(step), step) for step in (2, 3)]
        subject.export_weights(tmp_path / "weights.safetensors", 4)
        results.append(load_file(tmp_path / "weights.safetensors"))
    plain, offloaded = results
    assert max(float((plain[name] - offloaded[name]).abs().max()) for name in plain) < 1e-6
    assert reports[0].metrics["train/grad_norm/mean"] > 0
    resumed = learner(checkpoint=ref, **sections)
    digests = [resumed.update_from(factories.step_groups(step), step).weights_digest for step in (2, 3)]
    assert digests == [report.weights_digest for report in reports]
    assert torch.isfinite(torch.cat([value.flatten() for value in offloaded.values()])).all()
    disk = {"zero_stage": 3, "offload": {"optimizer": "nvme", "nvme_path": str(tmp_path)}}
    with pytest.raises(ConfigError, match=r"000002 cannot be resumed from.*moments.*Start a new run from"):
        learner(checkpoint=ref, learner=disk)


@pytest.mark.stack
def test_every_learner_has_a_folder_of_its_own_on_the_disk(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from agentfly_lib.training.engine import _swap

    offload = OffloadConfig(optimizer="nvme", nvme_path=tmp_path / "disk")
    with ExitStack() as mine, ExitStack() as theirs:
        one, other = _swap(mine, offload, "demo"), _swap(theirs, offload, "demo")
        assert [path.parent for path in (one, other)] == [tmp_path / "disk"] * 2
        assert one.name.startswith("agentfly-demo-")
        (one / "zero_stage_3").mkdir()
        mine.close()
        assert list((tmp_path / "disk").iterdir()) == [other]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"nvme_path=.*file/disk cannot be used: Not a directory"):
        _swap(ExitStack(), OffloadConfig(optimizer="nvme", nvme_path=tmp_path / "file" / "disk"), "demo")


@pytest.mark.stack
def test_a_buffer_for_weights_from_a_disk_holds_the_largest_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from agentfly_lib.configs import OptimConfig
    from agentfly_lib.training import engine

    monkeypatch.setattr(engine.dist, "get_world_size", lambda: 2)
    policy = torch.nn.ModuleList([torch.nn.Linear(7, 3), torch.nn.Linear(2, 2)])
    values = LearnerConfig(zero_stage=3, offload=OffloadConfig(parameters="nvme", nvme_path=tmp_path))
    made = engine._deepspeed_config(values, OptimConfig(), policy, offload=values.offload, universal=False)
    assert made["zero_optimization"]["offload_param"] == {
        "device": "nvme",
        "nvme_path": str(tmp_path),
        "buffer_size": 11,  # of 21 elements
    }
    assert made["zero_optimization"]["reduce_bucket_size"] == 7 * 3 + 3 + 2 * 2 + 2


@pytest.mark.stack
def test_a_disk_without_the_library_for_it_says_what_is_missing(
    learner: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.ops.op_builder import AsyncIOBuilder

    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda self, verbose=False: False)
    offload = {"optimizer": "nvme", "parameters": "nvme", "nvme_path": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"libaio.*apt install libaio-dev"):
        learner(learner={"zero_stage": 3, "offload": offload})
