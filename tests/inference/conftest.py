"""Small random models on disk, transformers as the second opinion, and one engine per variant for the whole session."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentfly_lib.configs import (
    ArithmeticDataConfig,
    PretrainedModelConfig,
    RolloutConfig,
    RunConfig,
    RunSection,
    SamplingConfig,
)
from agentfly_lib.refs import EngineRef, ModelRef
from tests.inference.held import commands_waiting, hold, release

VOCABULARY = 300
CONTEXT = 512
EOS = 3


@dataclass(frozen=True)
class Variant:
    """Two sets of weights of one shape: what the engine starts with, and what it is given later."""

    first: Path
    second: Path

    @property
    def second_weights(self) -> Path:
        return self.second / "model.safetensors"

    @property
    def first_weights(self) -> Path:
        return self.first / "model.safetensors"


@pytest.fixture(scope="session")
def variants(tmp_path_factory) -> dict[str, Variant]:
    """`tied` and `untied` word embeddings. Token i is the word `w<i>`."""
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocabulary = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words = PreTrainedTokenizerFast(tokenizer_object=vocabulary, unk_token="w0", eos_token=f"w{EOS}")

    root = tmp_path_factory.mktemp("models")

    def make(tied: bool, seed: int) -> Path:
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=128,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=tied,
            initializer_range=0.1,
            eos_token_id=EOS,
        )
        folder = root / f"{'tied' if tied else 'untied'}-{seed}"
        Qwen2ForCausalLM(config).float().save_pretrained(folder)
        words.save_pretrained(folder)
        return folder

    return {
        "tied": Variant(first=make(True, 0), second=make(True, 1)),
        "untied": Variant(first=make(False, 0), second=make(False, 1)),
    }


Reference = Callable[..., list[float]]


@pytest.fixture(scope="session")
def reference() -> Reference:
    """`reference(folder, token_ids, temperature=1.0)`: log-probs [T - 1] by transformers in float32."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    models: dict[Path, object] = {}

    def logprobs(folder: Path, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        if folder not in models:
            models[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = torch.tensor([list(token_ids)])
        with torch.no_grad():
            logits = models[folder](ids).logits[0, :-1] / temperature  # type: ignore[operator]
        return torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0].tolist()

    return logprobs


Logits = Callable[[Path, Sequence[int]], list[list[float]]]


@pytest.fixture(scope="session")
def logits_of() -> Logits:
    """`logits_of(folder, token_ids)`: logits [T, V] of what follows each token, by transformers in float32."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    def logits(folder: Path, token_ids: Sequence[int]) -> list[list[float]]:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            return model(torch.tensor([list(token_ids)])).logits[0].tolist()

    return logits


@pytest.fixture(scope="session")
def shaped() -> Callable[..., list[float]]:
    """`shaped(logits, sampling, prompt=, sampled=, stops=)`: log-probs [V] of what `sampling` makes of logits [V].

    Plain arithmetic by the definitions in `SamplingConfig`, one token at a time.
    """

    def log_probs(logits, sampling: SamplingConfig, *, prompt, sampled, stops=(), greedy=False) -> list[float]:
        values = []
        for token, logit in enumerate(logits):
            value = logit + sampling.logit_bias.get(token, 0.0)
            if token in stops and len(sampled) < sampling.min_tokens:
                value = -math.inf
            if token in prompt or token in sampled:
                value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
            value -= sampling.frequency_penalty * sampled.count(token)
            value -= sampling.presence_penalty * (token in sampled)
            values.append(value / (1.0 if greedy else sampling.temperature))
        largest = max(values)
        total = math.log(sum(math.exp(value - largest) for value in values)) + largest
        return [value - total for value in values]

    return log_probs


def run_config(**inference) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": RunSection(name="engine-tests"),
            "model": PretrainedModelConfig(name_or_path="given-as-a-ref"),
            "data": ArithmeticDataConfig(),
            "rollout": RolloutConfig(context_length=CONTEXT, max_prompt_tokens=256),
            "inference": {"device": "cpu", **inference},
        }
    )


@pytest.fixture(scope="session")
def engine_config() -> Callable[..., RunConfig]:
    """`engine_config(**inference)`: a run whose engine is as small as the models here."""
    return run_config


@pytest.fixture(scope="session")
def engines(ray_session, variants) -> Iterator[Callable[[str], EngineRef]]:
    """`engines(variant)`: an engine that serves the variant's first weights, started once."""
    pytest.importorskip("vllm")
    from agentfly_lib.inference.actor import ensure_engines, stop_engines

    started: dict[str, EngineRef] = {}

    def engine(name: str) -> EngineRef:
        if name not in started:
            model = ModelRef(path=variants[name].first, fingerprint=name)
            started[name] = ensure_engines(run_config(), model, namespace=f"engine-tests-{name}")
        return started[name]

    yield engine
    for ref in started.values():
        stop_engines(ref)


@pytest.fixture(scope="session", params=["tied", "untied"])
def variant(request) -> str:
    return request.param


@pytest.fixture
def served(engines, variants, variant) -> Iterator[EngineRef]:
    """The variant's engine; whatever the test loaded, it serves the first weights as version 0 afterwards."""
    from agentfly_lib.inference.actor import load_weights

    ref = engines(variant)
    yield ref
    load_weights(ref, variants[variant].first_weights, version=0, canary=None)


Inside = Callable[[EngineRef, Callable[[Any], Any]], Any]


@pytest.fixture(scope="session")
def inside() -> Inside:
    """`inside(ref, action)` runs `action(server)` in the engine's actor, to look at or break its inside."""
    ray = pytest.importorskip("ray")

    def run(ref: EngineRef, action: Callable[[Any], Any]) -> Any:
        ray.cloudpickle.register_pickle_by_value(sys.modules[action.__module__])
        actor = ray.get_actor(ref.names[0], namespace=ref.namespace)
        return ray.get(actor.__ray_call__.remote(action), timeout=30)

    return run


Beneath = Callable[..., Any]


@pytest.fixture
def beneath(inside) -> Beneath:
    """`tasks, updating = await beneath(ref, requests, update)`: an update that begins when all the requests are there
    and none has a token; what it has to do first lets them sample some, and they go on after it."""
    from agentfly_lib.inference.actor import engine_status

    async def run(
        ref: EngineRef, requests: Sequence[Coroutine[Any, Any, Any]], update: Callable[[], Any]
    ) -> tuple[list[asyncio.Task[Any]], asyncio.Task[Any]]:
        async def now(action: Callable[[Any], Any]) -> Any:
            return await asyncio.to_thread(inside, ref, action)

        await now(hold)
        tasks = [asyncio.create_task(request) for request in requests]
        async with asyncio.timeout(100):
            while sum(status.in_flight for status in await asyncio.to_thread(engine_status, ref)) < len(tasks):
                await asyncio.sleep(0.01)
            before = await now(commands_waiting)
            updating = asyncio.create_task(asyncio.to_thread(update))
            while await now(commands_waiting) <= before:
                await asyncio.sleep(0.01)
        await now(release)
        return tasks, updating

    return run
