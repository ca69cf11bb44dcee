"""Prompts with pictures: what the engines sample is the model's own, to the last log-prob, and the learner's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.stack

torch = pytest.importorskip("torch")

from agentfly_lib.chat.image_reader import ImageReader, vision_token_ids  # noqa: E402
from agentfly_lib.configs import SamplingConfig, TransformersConfig  # noqa: E402
from agentfly_lib.data.colours import generate  # noqa: E402
from agentfly_lib.errors import CanaryError, EngineError  # noqa: E402
from agentfly_lib.inference import GenerationRequest  # noqa: E402
from agentfly_lib.inference.transformers import TransformersEngine  # noqa: E402
from agentfly_lib.refs import EngineRef, ModelRef  # noqa: E402
from agentfly_lib.types import Canary  # noqa: E402

PICTURES = [problem.picture for problem in generate(seed=5, count=6)]


@dataclass(frozen=True)
class Seeing:
    """A small model that sees, with random weights, and what transformers alone makes of it."""

    path: Path
    other: Path
    """Another set of weights."""
    reader: ImageReader
    banned: list[int]

    def prompt(self, *pictures: bytes, words: int = 12) -> list[int]:
        ids = [(17 + 11 * place) % 200 + 20 for place in range(words)]
        for number, picture in enumerate(pictures):
            features = self.reader.tokens_of(self.reader.read(picture).grid)
            ids += [9, *[self.reader.image_token_id] * features, 10, *range(30 + number, 36 + number)]
        return ids

    def request(
        self, pictures: list[bytes], *, seed: int = 3, max_tokens: int = 10, **sampling: Any
    ) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"r{seed}",
            token_ids=self.prompt(*pictures, words=5 + 7 * seed % 40),
            images=pictures,
            max_tokens=max_tokens,
            seed=seed,
            sampling=SamplingConfig(**sampling),
        )

    def logprobs(
        self, ids: list[int], pictures: list[bytes], *, path: Path | None = None, banned: bool = True
    ) -> list[float]:
        """Of every token but the first [T - 1]."""
        from transformers import Qwen2VLForConditionalGeneration

        model = Qwen2VLForConditionalGeneration.from_pretrained(path or self.path).float().eval()
        tokens, more = torch.tensor([ids]), {}
        if pictures:
            seen = [self.reader.read(picture) for picture in pictures]
            more = {
                "pixel_values": torch.cat([each.pixel_values for each in seen]),
                "image_grid_thw": torch.tensor([each.grid for each in seen]),
                "mm_token_type_ids": (tokens == self.reader.image_token_id).int(),
            }
        with torch.no_grad():
            logits = model(input_ids=tokens, **more).logits[0, :-1]
        if banned:
            logits[:, self.banned] = float("-inf")
        return torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    from tests.training.factories import write_vision_model

    root = tmp_path_factory.mktemp("seeing")
    path, other = write_vision_model(root / "first"), write_vision_model(root / "other", seed=1)
    return Seeing(path=path, other=other, reader=ImageReader.of(path), banned=list(vision_token_ids(path)))


def agrees(seeing: Seeing, request: GenerationRequest, generation: Any) -> None:
    ids = [*request.token_ids, *generation.token_ids]
    expected = seeing.logprobs(ids, list(request.images))[len(request.token_ids) - 1 :]
    assert generation.logprobs == pytest.approx(expected, abs=2e-5)
    assert not set(generation.token_ids) & set(seeing.banned)


async def test_transformers_samples_rows_with_and_without_pictures_together(seeing: Seeing) -> None:
    engine = TransformersEngine(seeing.path, TransformersConfig(max_sequences=3), context_length=256)
    requests = [
        seeing.request(pictures, seed=seed, max_tokens=6 + seed)
        for seed, pictures in enumerate([PICTURES[:1], [], PICTURES[1:3], [], PICTURES[3:4]])
    ]

    generations = await asyncio.gather(*(engine.generate(request) for request in requests))
    await engine.close()

    for request, generation in zip(requests, generations, strict=True):
        agrees(seeing, request, generation)


async def test_a_token_that_would_claim_a_picture_is_never_sampled(seeing: Seeing) -> None:
    """Whatever the request asks for."""
    engine = TransformersEngine(seeing.path, context_length=256)
    for greedy in (False, True):
        request = seeing.request([], logit_bias=dict.fromkeys(seeing.banned, 100.0), max_tokens=30)
        generation = await engine.generate(
            GenerationRequest(
                request_id="r",
                token_ids=request.token_ids,
                max_tokens=30,
                seed=1,
                sampling=request.sampling,
                greedy=greedy,
            )
        )
        assert not set(generation.token_ids) & set(seeing.banned)
    await engine.close()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda ids, image: [token for token in ids if token != image], "not as many consecutive placeholders"),
        (lambda ids, image: [*ids, image], "1 image tokens belong to none"),
        (
            lambda ids, image: [*ids[: ids.index(image) + 1], 40, *ids[ids.index(image) + 1 :]],
            "not as many consecutive placeholders",
        ),
    ],
    ids=["none", "one too many", "torn apart"],
)
async def test_pictures_that_do_not_fit_their_placeholders_are_refused(
    seeing: Seeing, change: Callable[[list[int], int], list[int]], complaint: str
) -> None:
    engine = TransformersEngine(seeing.path, context_length=256)
    ids = change(seeing.prompt(PICTURES[0]), seeing.reader.image_token_id)
    with pytest.raises(ValueError, match=complaint):
        await engine.generate(GenerationRequest(request_id="r", token_ids=ids, images=PICTURES[:1], max_tokens=4))
    await engine.close()


async def test_a_model_that_does_not_see_takes_no_pictures(variants: Any) -> None:
    engine = TransformersEngine(variants["tied"].first, context_length=256)
    with pytest.raises(ValueError, match="is not a vision model"):
        await engine.generate(GenerationRequest(request_id="r", token_ids=[20, 21], images=PICTURES[:1], max_tokens=4))


@pytest.fixture(scope="module")
def served(ray_session: None, seeing: Seeing, engine_config: Callable[..., Any]) -> Iterator[EngineRef]:
    """A vLLM engine that serves the first weights."""
    pytest.importorskip("vllm")
    from agentfly_lib.inference.actor import ensure_engines, stop_engines

    ref = ensure_engines(engine_config(), ModelRef(path=seeing.path, fingerprint="seeing"), namespace="engine-pictures")
    yield ref
    stop_engines(ref)


@pytest.mark.slow
async def test_vllm_uses_the_ids_that_it_is_given_and_samples_what_the_model_would(
    served: EngineRef, seeing: Seeing
) -> None:
    """The engine itself compares the prompt that it used with the one that it was given, and fails if they differ."""
    from agentfly_lib.inference.actor import RayGenerate

    generate = RayGenerate(served)
    requests = [
        seeing.request(pictures, seed=seed)
        for seed, pictures in enumerate([PICTURES[:1], [], PICTURES[1:3], PICTURES[:1], PICTURES[3:6]])
    ]

    for request, generation in zip(requests, await asyncio.gather(*map(generate.generate, requests)), strict=True):
        agrees(seeing, request, generation)

    forced = seeing.request([], logit_bias=dict.fromkeys(seeing.banned, 100.0), max_tokens=30)
    assert not set((await generate.generate(forced)).token_ids) & set(seeing.banned)


@pytest.mark.slow
async def test_vllm_refuses_pictures_that_do_not_fit(served: EngineRef, seeing: Seeing) -> None:
    from agentfly_lib.inference.actor import RayGenerate

    ids = [*seeing.prompt(PICTURES[0]), seeing.reader.image_token_id]
    with pytest.raises(ValueError, match="belong to none of the 1 pictures"):
        await RayGenerate(served).generate(
            GenerationRequest(request_id="r", token_ids=ids, images=PICTURES[:1], max_tokens=4)
        )


@pytest.mark.slow
async def test_new_weights_see_pictures_anew_and_a_canary_with_a_picture_proves_it(
    served: EngineRef, seeing: Seeing, inside: Callable[..., Any]
) -> None:
    from agentfly_lib.inference.actor import RayGenerate, load_weights, prove

    ids = tuple(seeing.prompt(*PICTURES[:2], words=60))
    images = tuple(PICTURES[:2])

    def canary(path: Path) -> Canary:
        logprobs = seeing.logprobs(list(ids), list(images), path=path, banned=False)
        return Canary(token_ids=ids, logprobs=tuple(logprobs), images=images)

    assert prove(served, canary(seeing.path), tolerance=1e-4) < 1e-4
    with pytest.raises(CanaryError):
        prove(served, canary(seeing.other), tolerance=1e-4)

    _, update = load_weights(served, seeing.other / "model.safetensors", version=1, canary=canary(seeing.other))

    assert update.canary is not None
    assert update.canary.mean_difference < 1e-4 < update.canary.mean_difference_before
    request = seeing.request(PICTURES[:1], seed=4)
    generation = await RayGenerate(served).generate(request)
    expected = seeing.logprobs([*request.token_ids, *generation.token_ids], PICTURES[:1], path=seeing.other)
    assert generation.logprobs == pytest.approx(expected[len(request.token_ids) - 1 :], abs=2e-5)

    inside(served, _keep_features)
    with pytest.raises((CanaryError, EngineError), match="does not serve"):
        load_weights(served, seeing.path / "model.safetensors", version=2, canary=canary(seeing.path))


def _keep_features(server: Any) -> None:
    """Features of the old weights survive an update."""
    from agentfly_lib.inference import weight_update

    def reset(engine: Any) -> float:
        engine.reset_prefix_cache(reset_running_requests=True)
        return 0.0

    server._engine._reset_caches = reset
    del weight_update
