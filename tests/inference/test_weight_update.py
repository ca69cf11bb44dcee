"""A weight update reaches every weight, forgets the old ones, and is proven before it counts."""

import asyncio
import random
import shutil
from functools import partial
from types import SimpleNamespace

import pytest

from agentfly_lib.errors import CanaryError, EngineError
from agentfly_lib.inference.generate import GenerationRequest
from agentfly_lib.types import Canary

pytestmark = [pytest.mark.stack, pytest.mark.slow]

TOKENS = tuple(random.Random(8).choices(range(10, 300), k=100))


def request(token_ids=TOKENS, *, max_tokens=16, seed=3) -> GenerationRequest:
    return GenerationRequest(request_id="r", token_ids=token_ids, max_tokens=max_tokens, seed=seed)


@pytest.fixture
def actor():
    """The module under test; it needs Ray only when used."""
    from agentfly_lib.inference import actor

    return actor


@pytest.fixture
def canaries(variants, variant, reference) -> dict[str, Canary]:
    """What the learner would say of each set of weights."""
    folders = {"first": variants[variant].first, "second": variants[variant].second}
    return {name: Canary(token_ids=TOKENS, logprobs=tuple(reference(f, TOKENS))) for name, f in folders.items()}


async def test_the_new_weights_are_served_at_once_and_stamped(actor, served, variants, variant, canaries, reference):
    generate = actor.RayGenerate(served).generate
    old = await generate(request())
    ref, update = await asyncio.to_thread(
        actor.load_weights, served, variants[variant].second_weights, version=1, canary=canaries["second"]
    )
    new = await generate(request())
    expected = reference(variants[variant].second, [*TOKENS, *new.token_ids])[-16:]
    assert (old.policy_version, new.policy_version, ref.policy_version) == (0, 1, 1)
    assert new.logprobs == pytest.approx(expected, abs=1e-5)
    assert new.token_ids != old.token_ids
    assert update.canary is not None
    assert update.canary.max_difference < 1e-5
    assert update.canary.mean_difference_before > 0.1
    assert actor.weights_of(served) == 1


def test_many_updates_there_and_back_stay_right(actor, served, variants, variant, canaries):
    weights = {"first": variants[variant].first_weights, "second": variants[variant].second_weights}
    for version in range(1, 7):
        name = "second" if version % 2 else "first"
        _, update = actor.load_weights(served, weights[name], version=version, canary=canaries[name])
        assert update.canary.max_difference < 1e-5


async def test_the_canary_catches_another_file_and_nothing_is_sampled_until_a_good_update(
    actor, served, variants, variant, canaries
):
    generate = actor.RayGenerate(served).generate
    with pytest.raises(CanaryError, match=r"version 1: mean difference \d"):
        actor.load_weights(served, variants[variant].first_weights, version=1, canary=canaries["second"])
    with pytest.raises(EngineError, match="may not be used"):
        await generate(request())
    actor.load_weights(served, variants[variant].second_weights, version=1, canary=canaries["second"])
    assert (await generate(request())).policy_version == 1


def forget_the_reset(server):
    server._engine._reset_caches = lambda engine: 0.0


def remember_the_reset(server):
    del server._engine._reset_caches


def test_the_canary_catches_a_prefix_cache_that_was_not_reset(actor, served, variants, variant, canaries, inside):
    inside(served, forget_the_reset)
    try:
        with pytest.raises(CanaryError, match="prefix cache of the old weights for 96 of 100"):
            actor.load_weights(served, variants[variant].second_weights, version=1, canary=canaries["second"])
    finally:
        inside(served, remember_the_reset)


def forget_the_load(server):
    server._engine._thread.run(lambda engine: setattr(engine, "collective_rpc", lambda *a, **k: None)).result(10)


def remember_the_load(server):
    server._engine._thread.run(lambda engine: delattr(engine, "collective_rpc")).result(10)


def test_the_canary_catches_weights_that_never_arrived(actor, served, variants, variant, canaries, inside):
    inside(served, forget_the_load)
    try:
        with pytest.raises(CanaryError, match="same weights as before"):
            actor.load_weights(served, variants[variant].second_weights, version=1, canary=canaries["second"])
    finally:
        inside(served, remember_the_load)


async def test_requests_in_flight_go_on_and_every_token_says_which_weights_sampled_it(
    actor, served, variants, variant, canaries, reference, beneath
):
    client = actor.RayGenerate(served)
    asked = [client.generate(request(max_tokens=300, seed=i)) for i in range(4)]
    asked.append(client.generate_stream(request(max_tokens=300, seed=4), lambda delta: None))
    tasks, updating = await beneath(
        served,
        asked,
        partial(actor.load_weights, served, variants[variant].second_weights, version=1, canary=canaries["second"]),
    )
    await updating
    later = await client.generate(request(max_tokens=300))
    generations = await asyncio.gather(*tasks)
    assert [len(g.token_ids) for g in generations] == [300] * 5
    assert {g.policy_version for g in generations} == {0}  # the first token came from the old weights
    assert later.policy_version == 1
    for generation in generations:
        old = generation.versions.count(0)
        assert 0 < old < 300
        assert generation.versions == [0] * old + [1] * (300 - old)
        ids = [*TOKENS, *generation.token_ids]
        first, second = (
            reference(folder, ids)[-300:] for folder in (variants[variant].first, variants[variant].second)
        )
        assert generation.logprobs == pytest.approx(first[:old] + second[old:], abs=1e-4)
        assert generation.logprobs != pytest.approx(first, abs=1e-1)
        assert generation.logprobs != pytest.approx(second, abs=1e-1)


def test_an_engine_that_was_found_is_proven_or_told_apart_without_an_update(actor, served, canaries):
    assert actor.prove(served, canaries["first"], tolerance=1e-3) < 1e-5
    with pytest.raises(CanaryError, match="found does not serve the learner's weights of version 0"):
        actor.prove(served, canaries["second"], tolerance=1e-3)
    assert actor.prove(served, canaries["first"], tolerance=1e-3) < 1e-5


class SecondWeights:
    """A learner that holds the variant's second weights."""

    def __init__(self, path, canary: Canary) -> None:
        self.path, self._canary, self.exported = path, canary, 0

    async def canary(self) -> Canary:
        return self._canary

    async def export(self, path, version) -> Canary:
        shutil.copyfile(self.path, path)
        self.exported += 1
        return self._canary


async def test_an_engine_that_was_found_with_other_weights_of_the_same_version_is_sent_the_learners(
    actor, served, variants, variant, canaries, engine_config, tmp_path, monkeypatch
):
    from agentfly_lib.pipeline import engines
    from agentfly_lib.pipeline.background import Background
    from agentfly_lib.pipeline.learning import Learning
    from agentfly_lib.pipeline.times import StepTimes
    from agentfly_lib.refs import LearnerRef, ModelRef

    learner = SecondWeights(variants[variant].second_weights, canaries["second"])
    monkeypatch.setattr(engines, "Learner", lambda ref, config: learner)
    keeper = engines.EngineKeeper(
        engine_config(),
        model=ModelRef(path=variants[variant].first, fingerprint=""),
        namespace="none",
        trains=True,
        exchange=SimpleNamespace(folder=tmp_path),  # pyright: ignore[reportArgumentType]
        learning=Learning(),
        times=StepTimes(),
        background=Background(),
    )
    ref = LearnerRef(names=("rank",), namespace="none", policy_version=0)

    found = await keeper.serve(0, served, ref)
    assert (found.policy_version, learner.exported) == (0, 1)
    assert actor.prove(found, canaries["second"], tolerance=1e-3) < 1e-5
    await keeper.serve(0, found, ref)
    assert learner.exported == 1, "an engine that is proven keeps its weights"


async def test_after_an_update_that_failed_the_engine_claims_no_version(actor, served, variants, variant, canaries):
    with pytest.raises(CanaryError):
        actor.load_weights(served, variants[variant].first_weights, version=1, canary=canaries["second"])
    assert actor.weights_of(served) == -1


def test_a_missing_file_changes_nothing(actor, served, tmp_path):
    with pytest.raises(EngineError, match=r"no weights at .*gone\.safetensors"):
        actor.load_weights(served, tmp_path / "gone.safetensors", version=1, canary=None)
    assert actor.weights_of(served) == 0


def test_a_file_without_all_weights_is_refused_by_name(actor, served, variants, variant, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(variants[variant].second_weights)
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "part.safetensors")
    with pytest.raises(EngineError, match=r"the first is model\.norm\.weight"):
        actor.load_weights(served, tmp_path / "part.safetensors", version=1, canary=None)
