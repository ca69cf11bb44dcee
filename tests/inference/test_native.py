"""Two engines that take adapters and vLLM's own weight transfers: updates in flight, and sleep, on real engines."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from agentfly_lib.errors import CanaryError, EngineError
from agentfly_lib.inference.generate import GenerationRequest
from agentfly_lib.inference.source import AdapterFolder, Transfer
from agentfly_lib.refs import EngineRef
from agentfly_lib.types import Canary
from tests.inference.held import commands_waiting, hold, release

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE = "engine-tests-native"
TOKENS = tuple(random.Random(8).choices(range(10, 300), k=100))


def request(seed=3, max_tokens=16) -> GenerationRequest:
    ids = (*TOKENS, 10 + seed)
    return GenerationRequest(request_id=f"r{seed}", token_ids=ids, max_tokens=max_tokens, seed=seed)


def receive_by_file(server) -> None:
    """A transfer engine that reads a file, in the place of those that need GPUs."""
    from dataclasses import make_dataclass

    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    class FileTransfer(WeightTransferEngine):
        init_info_cls = make_dataclass("Init", [("folder", str)], bases=(WeightTransferInitInfo,))
        update_info_cls = make_dataclass("Update", [("name", str)], bases=(WeightTransferUpdateInfo,))

        def init_transfer_engine(self, init_info):
            self.folder = init_info.folder

        def start_weight_update(self):
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info):
            self.model.load_weights(load_file(f"{self.folder}/{update_info.name}").items())

        def update_weights(self, update_info):
            self.receive_weights(self.parse_update_info(update_info))

        def finish_weight_update(self):
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self):
            pass

    WeightTransferEngineFactory.register_engine("by-file", FileTransfer)


@pytest.fixture(scope="module")
def native(ray_session, variants, engine_config):
    """Two engines of the untied model, started with room for adapters and a transfer engine."""
    pytest.importorskip("vllm")
    import ray

    from agentfly_lib.inference import actor
    from agentfly_lib.inference.settings import EngineSettings

    settings = EngineSettings(
        inference=engine_config().inference,
        model_path=variants["untied"].first,
        context_length=512,
        device="cpu",
        transfer="by-file",
        lora_rank=4,
    )
    ref = EngineRef(names=("engine-0", "engine-1"), namespace=NAMESPACE, policy_version=0)
    ray.cloudpickle.register_pickle_by_value(sys.modules[receive_by_file.__module__])
    for name in ref.names:
        actor._create(name, NAMESPACE, settings, {"num_gpus": 0})
    prepared = [ray.get_actor(name, namespace=NAMESPACE).__ray_call__.remote(receive_by_file) for name in ref.names]
    ray.get(prepared, timeout=200)
    actor._on_all(ref.names, lambda name: actor._call(name, NAMESPACE, "start", seconds=300))
    yield ref
    actor.stop_engines(ref)


@pytest.fixture(scope="module")
def adapters(variants, tmp_path_factory) -> list[tuple[AdapterFolder, Canary]]:
    """Two adapters of the untied model, and what peft says of the tokens with each."""
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(5)
    base = AutoModelForCausalLM.from_pretrained(variants["untied"].first, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(base, config).eval()
    made = []
    for number in range(2):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.1 * torch.randn_like(parameter))
            logits = model(torch.tensor([TOKENS])).logits[0, :-1]
            chosen = torch.log_softmax(logits, -1).gather(-1, torch.tensor(TOKENS)[1:, None])[:, 0].tolist()
        folder: Path = tmp_path_factory.mktemp(f"adapter-{number}")
        model.save_pretrained(folder)
        made.append((AdapterFolder(folder), Canary(token_ids=TOKENS, logprobs=tuple(chosen))))
    return made


async def load(ref, source, version, canary):
    from agentfly_lib.inference import actor

    return await asyncio.to_thread(actor.load_weights, ref, source, version=version, canary=canary)


async def inside(ref, action) -> list:
    """What the action finds in each engine's actor."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[action.__module__])
    calls = [ray.get_actor(name, namespace=NAMESPACE).__ray_call__.remote(action) for name in ref.names]
    return [await asyncio.wait_for(asyncio.ensure_future(awaited(call)), 60) for call in calls]


async def awaited(call):
    return await call


async def test_requests_in_flight_on_both_engines_go_on_under_new_adapters(native, adapters):
    from agentfly_lib.inference import actor

    (first, said_first), (second, said_second) = adapters
    ref, update = await load(native, first, 1, said_first)
    assert update.canary.max_difference < 1e-5
    assert update.canary.mean_difference_before > 0.01
    client = actor.RayGenerate(ref)
    await inside(ref, hold)
    flying = [asyncio.ensure_future(client.generate(request(seed, 300))) for seed in range(12)]
    async with asyncio.timeout(100):
        while sum(status.in_flight for status in await asyncio.to_thread(actor.engine_status, ref)) < 12:
            await asyncio.sleep(0.01)
        before = await inside(ref, commands_waiting)
        loading = asyncio.ensure_future(load(ref, second, 2, said_second))
        while any(now <= then for now, then in zip(await inside(ref, commands_waiting), before, strict=True)):
            await asyncio.sleep(0.01)
    await inside(ref, release)  # the requests begin; the update's first canary lets them sample before it loads
    ref, update = await loading
    assert update.canary.max_difference < 1e-5
    assert actor.weights_of(ref) == 2
    generations = await asyncio.gather(*flying)
    assert [len(each.token_ids) for each in generations] == [300] * 12
    assert all(list(each.versions) == sorted(each.versions) for each in generations)
    assert {(each.versions[0], each.versions[-1]) for each in generations} == {(1, 2)}
    assert client.losses == []


async def test_the_canary_tells_one_adapter_from_another(native, adapters):
    (first, said_first), (second, said_second) = adapters
    await load(native, first, 3, said_first)
    with pytest.raises(CanaryError, match="version 4"):
        await load(native, first, 4, said_second)
    _, update = await load(native, second, 4, said_second)
    assert update.canary.max_difference < 1e-5


async def test_a_folder_without_an_adapter_changes_nothing(native, adapters, tmp_path):
    from agentfly_lib.inference import actor

    await load(native, *adapters[0][:1], 5, adapters[0][1])
    with pytest.raises(EngineError, match=r"no weights at .*adapter_model\.safetensors"):
        await load(native, AdapterFolder(tmp_path), 6, None)
    assert actor.prove(native.model_copy(update={"policy_version": 5}), adapters[0][1], tolerance=1e-3) < 1e-5


async def test_vllms_own_transfer_brings_weights_and_takes_the_adapter_away(native, adapters, variants, reference):
    from agentfly_lib.inference import actor

    await load(native, *adapters[0][:1], 7, adapters[0][1])
    said = Canary(token_ids=TOKENS, logprobs=tuple(reference(variants["untied"].second, TOKENS)))
    await asyncio.to_thread(actor.open_transfer, native, [{"folder": str(variants["untied"].second)}] * 2)
    ref, update = await load(native, Transfer({"name": "model.safetensors"}), 8, said)
    assert update.canary.max_difference < 1e-5
    assert (await actor.RayGenerate(ref).generate(request())).policy_version == 8
    with pytest.raises(EngineError, match="no weight transfer"):
        actor.open_transfer(native, [{"unknown": 1}] * 2)


async def test_engines_that_sleep_refuse_requests_until_they_wake_with_weights(native, variants, reference):
    from agentfly_lib.inference import actor

    said = Canary(token_ids=TOKENS, logprobs=tuple(reference(variants["untied"].second, TOKENS)))
    ref, _ = await load(native, variants["untied"].second_weights, 10, said)
    generate = actor.RayGenerate(ref).generate
    before = await generate(request())
    actor.sleep_engines(ref, 1)
    actor.sleep_engines(ref, 1)
    for refused in (generate(request()), load(ref, variants["untied"].second_weights, 11, said)):
        with pytest.raises(EngineError, match="sleeps while the learner computes"):
            await refused
    actor.wake_engines(ref)
    assert actor.weights_of(ref) == 10
    after = await actor.RayGenerate(ref).generate(request())
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)

    actor.sleep_engines(ref, 2)
    actor.wake_engines(ref)
    assert actor.weights_of(ref) == -1
    with pytest.raises(EngineError, match="given up its weights"):
        await actor.RayGenerate(ref).generate(request())
    _, update = await load(ref, variants["untied"].second_weights, 11, said)
    assert update.canary.max_difference < 1e-5
    assert (await actor.RayGenerate(ref).generate(request())).policy_version == 11


async def test_an_engine_with_half_a_model_is_ended(native):
    from agentfly_lib.inference import actor

    with pytest.raises(EngineError, match="cannot be loaded from what the learner sends"):
        await load(native, Transfer({"name": "missing.safetensors"}), 12, None)
    with pytest.raises(EngineError, match=r"there is no engine|is gone"):
        actor.engine_status(native)
