"""Rows with pictures: what the learner computes is what the model computes for each sample alone."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from PIL import Image  # noqa: E402

from agentfly_lib.chat.image_reader import ImageReader, vision_token_ids  # noqa: E402
from agentfly_lib.configs import AlgorithmConfig  # noqa: E402
from agentfly_lib.errors import LearnerError  # noqa: E402
from agentfly_lib.training.losses import policy_loss  # noqa: E402
from agentfly_lib.training.packing import to_batch  # noqa: E402
from agentfly_lib.training.policy import PolicyInputs, PolicyModule, load_policy  # noqa: E402
from agentfly_lib.training.vision import Eyes, vision_tower  # noqa: E402
from agentfly_lib.types import ImageSpan, TrainingSample  # noqa: E402

CPU = torch.device("cpu")
PLAIN_IDS = 300
"""Ids below this and above the control tokens are words."""
FIRST_WORD = 13


@dataclasses.dataclass(frozen=True, repr=False)
class Model:
    path: Path
    policy: PolicyModule
    eyes: Eyes
    reference: Any
    """The same weights by transformers alone, with its own attention and its own positions."""
    banned: tuple[int, ...]


@pytest.fixture(scope="module")
def model(vision_model: Path) -> Model:
    return loaded(vision_model)


def loaded(path: Path) -> Model:
    from transformers import AutoModelForImageTextToText

    network = load_policy(path, torch.float32)
    eyes = Eyes.of(path, network)
    assert eyes is not None
    banned = vision_token_ids(path)
    return Model(
        path=path,
        policy=PolicyModule(network, logit_chunk_tokens=64, banned=banned),
        eyes=eyes,
        reference=AutoModelForImageTextToText.from_pretrained(path, attn_implementation="eager").float().eval(),
        banned=banned,
    )


def picture(seed: int) -> bytes:
    """Noise of a size that gives 4 to 16 features."""
    rng = np.random.default_rng(seed)
    height, width = (int(side) for side in rng.integers(20, 90, 2))
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8).astype(np.uint8)).save(file, format="PNG")
    return file.getvalue()


def sample(reader: ImageReader, seed: int, parts: list[int]) -> TrainingSample:
    """Stretches of words, of these lengths; between two of them stands a picture."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    images, pictures = [], {}
    for number, length in enumerate(parts):
        if number:
            data = picture(seed * 100 + number)
            seen = reader.read(data)
            digest = hashlib.sha256(data).hexdigest()
            features = reader.tokens_of(seen.grid)
            images.append(ImageSpan(digest=digest, start=len(ids), end=len(ids) + features, grid=seen.grid))
            pictures[digest] = data
            ids += [reader.image_token_id] * features
        ids += rng.integers(FIRST_WORD, PLAIN_IDS, length).tolist()
    mask = rng.random(len(ids)) < 0.6
    mask[-1] = True
    mask[0] = False
    for image in images:
        mask[image.start : image.end] = False
    return TrainingSample(
        trajectory_id=f"t{seed}",
        token_ids=np.array(ids, np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, np.float32(-3), np.float32(np.nan)),
        advantages=np.where(mask, np.float32(rng.normal()), np.float32(0)),
        images=tuple(images),
        pictures=pictures,
    )


def alone(model: Model, one: TrainingSample) -> dict[str, Any]:
    """What transformers takes of a sample, without anything of ours but the pixels."""
    ids = torch.from_numpy(one.token_ids).long()[None]
    if not one.images:
        return {"input_ids": ids}
    seen = [model.eyes.reader.read(one.pictures[image.digest]) for image in one.images]
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == model.eyes.reader.image_token_id).int(),
        "pixel_values": torch.cat([each.pixel_values for each in seen]),
        "image_grid_thw": torch.tensor([each.grid for each in seen]),
    }


def expected_logprobs(model: Model, one: TrainingSample) -> torch.Tensor:
    logits = model.reference(**alone(model, one)).logits[0]
    logits = logits.index_fill(-1, torch.tensor(model.banned), float("-inf"))
    chosen = torch.from_numpy(np.flatnonzero(one.loss_mask))
    logprobs = torch.log_softmax(logits[chosen - 1], -1)
    return logprobs.gather(-1, torch.from_numpy(one.token_ids).long()[chosen][:, None])[:, 0]


@st.composite
def mixes(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Seeds and stretches of 1 to 4 samples, each with up to 3 pictures, side by side too; some without any."""
    stretch = st.lists(st.integers(1, 9), min_size=1, max_size=4)
    parts = draw(st.lists(stretch, min_size=1, max_size=4))
    first = draw(st.integers(0, 10_000))
    return [(first + number, each) for number, each in enumerate(parts)]


@given(mixes())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_positions_and_features_are_those_of_the_model_for_each_sample_alone(
    model: Model, mix: list[tuple[int, list[int]]]
) -> None:
    samples = [sample(model.eyes.reader, seed, parts) for seed, parts in mix]
    seen = model.eyes.see(to_batch(samples))
    network: Any = model.policy.model
    assert isinstance(network, torch.nn.Module)
    inside: list[torch.Tensor] = []
    hook = network.model.language_model.register_forward_pre_hook(
        lambda module, arguments, named: inside.append(named["inputs_embeds"]), with_kwargs=True
    )
    with torch.no_grad():
        model.policy(PolicyInputs(to_batch(samples), CPU, model.eyes))
    hook.remove()
    reached: list[dict[str, torch.Tensor]] = []
    hook = model.reference.model.language_model.register_forward_pre_hook(
        lambda module, arguments, named: reached.append(named), with_kwargs=True
    )
    start = 0
    for one in samples:
        with torch.no_grad():
            model.reference(**alone(model, one))
        end = start + len(one)
        positions = reached[-1]["position_ids"]
        expected = np.broadcast_to(np.arange(len(one)), (3, len(one))) if positions is None else positions[:, 0].numpy()
        assert (seen.position_ids[:, start:end] == expected).all()
        torch.testing.assert_close(inside[-1][0, start:end], reached[-1]["inputs_embeds"][0], atol=1e-3, rtol=1e-3)
        start = end
    hook.remove()
    extra = 0 if any(one.images for one in samples) else 1
    assert len(seen.batch.token_ids) == start + extra


@given(mixes())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_logprobs_of_a_packed_row_are_those_of_each_sample_alone(
    model: Model, mix: list[tuple[int, list[int]]]
) -> None:
    samples = [sample(model.eyes.reader, seed, parts) for seed, parts in mix if sum(parts) > 1]
    if not samples:
        return
    with torch.no_grad():
        logprobs, entropy, _ = model.policy(PolicyInputs(to_batch(samples), CPU, model.eyes))
        expected = torch.cat([expected_logprobs(model, one) for one in samples])
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=2e-5)
    assert torch.isfinite(entropy).all()


def gradient(model: Model, rows: list[list[TrainingSample]], total: int) -> dict[str, torch.Tensor]:
    model.policy.zero_grad(set_to_none=True)
    for row in rows:
        inputs = PolicyInputs(to_batch(row), CPU, model.eyes)
        logprobs, entropy, _ = model.policy(inputs)
        policy_loss(
            logprobs,
            old=logprobs.detach() - 0.1,
            recorded=inputs.recorded,
            advantages=inputs.advantages,
            shares=torch.full_like(inputs.advantages, 1 / total),
            algorithm=AlgorithmConfig(),
            entropy=entropy,
        ).loss.backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.policy.named_parameters()
        if parameter.grad is not None
    }


def test_the_gradient_of_a_packed_row_is_the_sum_over_its_samples(model: Model) -> None:
    shapes = [[5, 4], [8], [3, 3, 6], [2, 1, 1, 5]]
    samples = [sample(model.eyes.reader, 70 + seed, parts) for seed, parts in enumerate(shapes)]
    total = sum(one.num_loss_tokens for one in samples)

    packed = gradient(model, [samples], total)
    apart = gradient(model, [[one] for one in samples], total)

    assert packed.keys() == apart.keys() == dict(model.policy.named_parameters()).keys(), "the tower is trained too"
    tower = [name for name in packed if ".visual." in name]
    assert all(packed[name].abs().max() > 0 for name in tower if not name.endswith("k.bias"))
    for name, of_row in packed.items():
        torch.testing.assert_close(of_row, apart[name], atol=1e-6, rtol=1e-4, msg=lambda text, at=name: f"{at}: {text}")


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_relatives_are_packed_and_trained_alike(factories: ModuleType, tmp_path: Path, family: str) -> None:
    """Windows in the tower (Qwen2.5-VL), and features that enter deeper layers too (Qwen3-VL)."""
    other = loaded(factories.write_vision_model(tmp_path / family, family=family))
    samples = [sample(other.eyes.reader, seed, parts) for seed, parts in enumerate([[5, 4], [8], [3, 3, 6]])]
    total = sum(one.num_loss_tokens for one in samples)
    with torch.no_grad():
        logprobs, _, _ = other.policy(PolicyInputs(to_batch(samples), CPU, other.eyes))
        expected = torch.cat([expected_logprobs(other, one) for one in samples])
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=2e-5)

    packed, apart = gradient(other, [samples], total), gradient(other, [[one] for one in samples], total)
    assert packed.keys() == apart.keys() == dict(other.policy.named_parameters()).keys()
    for name, of_row in packed.items():
        torch.testing.assert_close(of_row, apart[name], atol=1e-6, rtol=1e-4, msg=lambda text, at=name: f"{at}: {text}")


@given(mixes(), st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_in_which_nothing_is_trained_has_a_gradient_of_exactly_zero(
    model: Model, mix: list[tuple[int, list[int]]], seed: int
) -> None:
    """Its samples' tokens are all masked, pictures included; so are the numbers that stand at them."""
    rng = np.random.default_rng(seed)
    masked = [
        dataclasses.replace(
            one,
            loss_mask=np.zeros(len(one), np.bool_),
            advantages=rng.normal(0, 1e6, len(one)).astype(np.float32),
            rollout_logprobs=np.full(len(one), np.nan, np.float32),
        )
        for one in (sample(model.eyes.reader, seed_, parts) for seed_, parts in mix)
    ]
    trained = sample(model.eyes.reader, 5, [4, 6])

    both = gradient(model, [[trained, *masked]], trained.num_loss_tokens)
    one = gradient(model, [[trained]], trained.num_loss_tokens)

    for name, of_both in both.items():
        torch.testing.assert_close(of_both, one[name], atol=1e-6, rtol=1e-4, msg=lambda text, at=name: f"{at}: {text}")
    model.policy.zero_grad(set_to_none=True)
    logprobs, _, values = model.policy(PolicyInputs(to_batch(masked), CPU, model.eyes))
    (logprobs.sum() * 0.0 + values.sum() * 0.0).backward()
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in model.policy.parameters())


def test_what_stands_at_a_masked_token_changes_no_bit_of_the_gradient(model: Model) -> None:
    one = sample(model.eyes.reader, 11, [6, 5, 7])
    other = dataclasses.replace(
        one,
        advantages=np.where(one.loss_mask, one.advantages, np.float32(1e9)),
        rollout_logprobs=np.where(one.loss_mask, one.rollout_logprobs, np.float32(-1e9)),
    )

    first, second = (gradient(model, [[each]], one.num_loss_tokens) for each in (one, other))

    assert all(torch.equal(first[name], second[name]) for name in first)


def test_image_tokens_have_no_part_in_the_distribution(model: Model) -> None:
    one = sample(model.eyes.reader, 21, [5, 5])
    inputs = PolicyInputs(to_batch([one]), CPU, model.eyes)
    ids = torch.arange(model.policy.model.get_output_embeddings().weight.shape[0])
    inputs.sources, inputs.targets = torch.full_like(ids, len(one) - 2), ids
    with torch.no_grad():
        logprobs, _, _ = model.policy(inputs)

    share = logprobs.double().exp()
    assert share[list(model.banned)].sum() == 0
    assert float(share.sum()) == pytest.approx(1.0, abs=1e-5)


def test_a_row_without_pictures_runs_the_tower_and_gives_it_a_gradient_of_zero(model: Model) -> None:
    """Ranks that have pictures and ranks that have none call the same modules in the same order."""
    called: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, at=name: called.append(at))
        for name, module in model.policy.named_modules()
    ]
    of_text = gradient(model, [[sample(model.eyes.reader, 1, [9])]], 5)
    without, called[:] = called.copy(), []
    gradient(model, [[sample(model.eyes.reader, 2, [4, 4, 4])]], 5)
    with_pictures, called[:] = called.copy(), []
    model.policy(PolicyInputs(to_batch([]), CPU, model.eyes))
    for hook in hooks:
        hook.remove()

    assert without == with_pictures == called
    tower = {name: part for name, part in of_text.items() if ".visual." in name}
    assert tower
    assert all(torch.count_nonzero(part) == 0 for part in tower.values())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda one: {"images": one.images[:1]}, "image tokens and"),
        (lambda one: {"images": (dataclasses.replace(one.images[0], grid=(1, 2, 2)), one.images[1])}, "another model"),
        (lambda one: {"pictures": _swapped(one)}, "collected with another model"),
    ],
    ids=["a picture is missing", "another grid", "another picture"],
)
def test_pictures_that_do_not_fit_their_tokens_are_refused(
    model: Model, change: Callable[[TrainingSample], dict[str, Any]], complaint: str
) -> None:
    one = sample(model.eyes.reader, 31, [3, 4, 5])
    with pytest.raises(LearnerError, match=complaint):
        model.eyes.see(to_batch([dataclasses.replace(one, **change(one))]))


def test_the_tower_is_found_and_a_model_without_one_has_no_eyes(model: Model, tiny_model: Path) -> None:
    assert vision_tower(model.policy.model) is model.policy.model.model.visual  # type: ignore[union-attr]
    text = load_policy(tiny_model, torch.float32)
    assert Eyes.of(tiny_model, text) is None
    assert vision_tower(text) is None


def _swapped(one: TrainingSample) -> dict[str, bytes]:
    big = io.BytesIO()
    Image.new("RGB", (40, 90)).save(big, format="PNG")
    return {digest: big.getvalue() for digest in one.pictures}
