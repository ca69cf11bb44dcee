"""A learner whose policy sees: what is trained of it, what is kept, and what proves its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402

pytest.importorskip("deepspeed")
from safetensors.torch import load_file  # noqa: E402

from agentfly_lib.errors import ConfigError, LearnerError  # noqa: E402

Make = Callable[..., Any]
SHAPES = [[8, 6], [12], [5, 4, 7], [9]]


def weights(learner: Any, path: Path) -> dict[str, torch.Tensor]:
    learner.export_weights(path, learner.policy_version)
    return load_file(path)


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture
def groups(factories: ModuleType, vision_model: Path) -> Callable[[int], Any]:
    return lambda step: factories.vision_step_groups(step, vision_model, shapes=SHAPES)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_tower_is_trained_unless_it_is_frozen(
    learner: Make, vision_model: Path, groups: Callable[[int], Any], tmp_path: Path, frozen: bool
) -> None:
    subject = learner(model=vision_model, learner={"freeze_vision": frozen})
    before = weights(subject, tmp_path / "before")
    report = subject.update_from(groups(0), 0)
    after = weights(subject, tmp_path / "after")

    changed = moved(before, after)
    tower = {name for name in before if ".visual." in name}
    assert tower
    assert changed & tower == (set() if frozen else tower)
    assert {name for name in before if "language_model" in name} <= changed
    assert report.metrics["train/grad_norm/mean"] > 0


def test_going_on_with_a_frozen_tower_is_bit_exact(
    learner: Make, factories: ModuleType, vision_model: Path, groups: Callable[[int], Any], tmp_path: Path
) -> None:
    settings = {"model": vision_model, "learner": {"freeze_vision": True}}
    first = learner(**settings)
    first.update_from(groups(0), 0)
    checkpoint = factories.saved(first, tmp_path / "000001")
    report = first.update_from(groups(1), 1)

    second = learner(**settings, checkpoint=checkpoint)
    assert second.policy_version == 1
    assert second.update_from(groups(1), 1).weights_digest == report.weights_digest

    with pytest.raises(LearnerError, match="freeze_vision"):
        learner(model=vision_model, checkpoint=checkpoint)


@pytest.mark.parametrize("tower_too", [False, True])
def test_adapters_are_in_the_language_part_unless_the_tower_is_asked_for(
    learner: Make, vision_model: Path, groups: Callable[[int], Any], tmp_path: Path, tower_too: bool
) -> None:
    pytest.importorskip("peft")
    subject = learner(model=vision_model, learner={"lora": {"rank": 4, "alpha": 8.0, "vision": tower_too}})
    names = [name for name, value in subject.engine.policy.model.named_parameters() if value.requires_grad]
    assert any(".language_model." in name for name in names)
    assert any(".visual." in name for name in names) == tower_too

    before = weights(subject, tmp_path / "before")
    subject.update_from(groups(0), 0)
    changed = moved(before, weights(subject, tmp_path / "after"))

    assert changed
    assert any(".visual." in name for name in changed) == tower_too


def test_the_canary_holds_a_picture_so_that_it_proves_the_tower_too(
    learner: Make, vision_model: Path, groups: Callable[[int], Any]
) -> None:
    subject = learner(model=vision_model)
    (picture,) = subject.canary_images
    ids = subject.canary_token_ids
    assert len(ids) == 72
    before = subject.canary_logprobs(ids, [picture])
    assert len(before) == 71

    with torch.no_grad():
        subject.engine.policy.model.model.visual.merger.mlp[0].weight.mul_(1.5)
    after = subject.canary_logprobs(ids, [picture])

    place = ids.index(subject.engine.policy.model.config.image_token_id)
    assert before[: place - 1] == after[: place - 1]
    assert before[place:] != after[place:]


def test_the_tower_of_a_model_without_one_cannot_be_frozen(learner: Make) -> None:
    with pytest.raises(ConfigError, match="has no vision tower"):
        learner(learner={"freeze_vision": True})


def test_a_trajectory_whose_pictures_do_not_fit_its_tokens_is_dropped_whole(
    learner: Make, vision_model: Path, groups: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics too: what is left trains as if it had never been there."""
    (group,) = groups(0)
    first, *others = group.trajectories
    (segment,) = first.segments
    image = segment.images[0]
    ids = segment.token_ids.copy()
    ids[image.start] = 20
    torn = dataclasses.replace(first, segments=(dataclasses.replace(segment, token_ids=ids),))
    without = dataclasses.replace(group, trajectories=tuple(others))
    with_torn = dataclasses.replace(group, trajectories=(torn, *others))

    report = learner(model=vision_model).update_from([with_torn], 0)
    assert report.metrics["train/misfit_trajectories/count"] == 1
    assert f"trajectory {first.id} is not trained on: the picture {image.digest[:12]}" in caplog.text
    again = learner(model=vision_model).update_from([without], 0)
    assert again.weights_digest == report.weights_digest
