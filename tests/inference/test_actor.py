"""An engine's death shows at once; making sure of engines is idempotent and replaces what cannot be kept."""

import asyncio
import os
import random
import signal

import pytest

from agentfly_lib.errors import EngineError, ModelError
from agentfly_lib.inference.generate import GenerationRequest
from agentfly_lib.inference.settings import EngineSettings
from agentfly_lib.refs import EngineRef, ModelRef

pytestmark = [pytest.mark.stack, pytest.mark.slow]

NAMESPACE = "engine-tests-actor"


def request(max_tokens: int, seed: int = 0) -> GenerationRequest:
    ids = random.Random(seed).choices(range(10, 300), k=20)
    return GenerationRequest(request_id=f"r{seed}", token_ids=ids, max_tokens=max_tokens, seed=seed)


@pytest.fixture
def actor():
    from agentfly_lib.inference import actor

    return actor


@pytest.fixture
def model(variants) -> ModelRef:
    return ModelRef(path=variants["tied"].first, fingerprint="tied")


@pytest.fixture
def ensure(actor, ray_session, model, engine_config):
    """Make sure of one engine, shared by the tests here: the first one starts it."""

    async def run(**options) -> EngineRef:
        return await asyncio.to_thread(actor.ensure_engines, engine_config(), model, namespace=NAMESPACE, **options)

    return run


@pytest.fixture(scope="module", autouse=True)
def _stop_afterwards(ray_session):
    yield
    from agentfly_lib.inference.actor import stop_engines

    stop_engines(EngineRef(names=("engine-0",), namespace=NAMESPACE, policy_version=0))


async def test_an_engine_is_kept_while_it_lives_and_a_killed_one_is_noticed_at_once_and_made_anew(actor, ensure):
    ref = await ensure(policy_version=5)
    first = actor.engine_status(ref)[0].pid
    again = await ensure(policy_version=5)
    assert again == ref == EngineRef(names=("engine-0",), namespace=NAMESPACE, policy_version=5)
    assert actor.engine_status(again)[0].pid == first

    generate = actor.RayGenerate(ref).generate
    assert len((await generate(request(10))).token_ids) == 10
    told: list[int] = []
    streamed = actor.RayGenerate(ref).generate_stream
    waiting = [asyncio.create_task(streamed(request(480, 99), told.extend))]
    waiting += [asyncio.create_task(generate(request(480, seed))) for seed in range(39)]
    async with asyncio.timeout(20):
        while actor.engine_status(ref)[0].in_flight < 40 or not told:
            await asyncio.sleep(0.01)
    os.kill(first, signal.SIGKILL)
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
    assert {type(outcome) for outcome in outcomes} == {EngineError}
    assert "engine 'engine-0' is gone" in str(outcomes[0])
    with pytest.raises(EngineError, match="is gone"):
        await generate(request(10))
    with pytest.raises(EngineError, match=r"is gone|there is no engine"):
        actor.weights_of(ref)

    made = await ensure(policy_version=6)
    assert made.policy_version == 6
    assert actor.engine_status(made)[0].pid != first
    assert (await actor.RayGenerate(made).generate(request(10))).policy_version == 6


async def test_an_engine_of_other_settings_or_another_model_is_not_kept(actor, ensure, model, engine_config):
    await ensure()

    def living(fingerprint=model.fingerprint, **inference):
        settings = EngineSettings(
            inference=engine_config(**inference).inference,
            model_path=model.path,
            context_length=512,
            device="cpu",
            model_fingerprint=fingerprint,
        )
        return actor._status_of_living("engine-0", NAMESPACE, settings.digest)

    assert living() is not None
    assert living(max_sequences=64) is None
    assert living(dtype="bfloat16") is None
    assert living(fingerprint="of another model at the same path") is None


def end_the_engine(server):
    def fail():
        raise RuntimeError("the machine caught fire")

    server._engine._thread.run(lambda engine: setattr(engine, "step", fail)).result(10)


async def test_an_engine_that_dies_in_a_living_actor_fails_its_waiters_and_is_not_kept(actor, ensure, inside):
    ref = await ensure()
    generate = actor.RayGenerate(ref).generate
    await asyncio.to_thread(inside, ref, end_the_engine)
    with pytest.raises(EngineError, match="engine died: RuntimeError: the machine caught fire"):
        await asyncio.wait_for(generate(request(10)), 10)
    with pytest.raises(EngineError, match="caught fire"):
        actor.weights_of(ref)


def test_stopped_engines_are_gone_by_name_and_stopping_again_is_quiet(actor, ray_session):
    ref = EngineRef(names=("engine-0",), namespace="engine-tests-never", policy_version=0)
    actor.stop_engines(ref)
    with pytest.raises(EngineError, match="there is no engine 'engine-0' in namespace 'engine-tests-never'"):
        actor.RayGenerate(ref)


def test_an_engine_that_cannot_start_says_why_and_leaves_no_actor(actor, ray_session, model, engine_config, tmp_path):
    broken = model.model_copy(update={"path": tmp_path})
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        actor.ensure_engines(engine_config(), broken, namespace="engine-tests-broken")
    (tmp_path / "config.json").write_text((model.path / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EngineError, match=r"cannot start: .*\(model .*, cpu\)"):
        actor.ensure_engines(engine_config(), broken, namespace="engine-tests-broken")
    with pytest.raises(EngineError, match="there is no engine"):
        actor.weights_of(EngineRef(names=("engine-0",), namespace="engine-tests-broken", policy_version=0))
