"""The distribution that is sampled, against values worked out by hand, and draws from it."""

from __future__ import annotations

import math
import random

import pytest

from agentfly_lib.configs import SamplingConfig
from agentfly_lib.inference import GenerationRequest

torch = pytest.importorskip("torch")

from agentfly_lib.inference.sampler import draw, processed_logprobs  # noqa: E402

pytestmark = pytest.mark.stack

PROBABILITIES = [0.5, 0.3, 0.15, 0.05]


def request(*, greedy: bool = False, **sampling) -> GenerationRequest:
    return GenerationRequest(
        request_id="r", token_ids=[1], max_tokens=1, sampling=SamplingConfig(**sampling), greedy=greedy
    )


def processed(*requests: GenerationRequest) -> list[list[float]]:
    logits = torch.tensor([[math.log(p) + 7 for p in PROBABILITIES]] * len(requests))
    return processed_logprobs(logits, requests, [[]] * len(requests)).exp().tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),  # squares, sum 0.365
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_k": 9}, PROBABILITIES),
        ({"top_p": 0.49}, [1, 0, 0, 0]),
        ({"top_p": 0.51}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.9}, [10 / 19, 6 / 19, 3 / 19, 0]),
        ({"min_p": 0.2}, [10 / 19, 6 / 19, 3 / 19, 0]),  # at least 0.1
        ({"top_k": 3, "top_p": 0.55}, [0.625, 0.375, 0, 0]),  # of 10/19, 6/19, 3/19
    ],
)
def test_the_processed_distribution(sampling, expected):
    (found,) = processed(request(**sampling))
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_greedy_request_beside_others_keeps_the_unscaled_distribution():
    greedy, cold = processed(request(greedy=True, temperature=0.1, top_k=1), request(temperature=0.1))
    assert greedy == pytest.approx(PROBABILITIES, abs=1e-6)
    assert cold[0] > 0.99


def test_a_draw_is_the_first_token_whose_share_reaches_beyond_the_number():
    requests = [request()] * 6
    logprobs = torch.log(torch.tensor([PROBABILITIES] * 6))
    assert draw(logprobs, requests, [0.0, 0.49, 0.51, 0.79, 0.81, 0.9999999]).tolist() == [0, 0, 1, 1, 2, 3]


def test_what_was_cut_is_never_drawn():
    logprobs = torch.log(torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]] * 3))
    assert draw(logprobs, [request()] * 3, [0.0, 0.5, 1 - 2**-53]).tolist() == [1, 3, 3]


EVERYTHING = {
    "temperature": 0.7,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": -0.25,
    "min_tokens": 4,
    "logit_bias": {2: 1.5, 5: -100.0, 11: 3.0},
}
ONE_BY_ONE = [{name: value} for name, value in EVERYTHING.items()]


def written(seed: int) -> tuple[list[float], list[int], list[int]]:
    """Logits of 12 tokens, a prompt, and a reply so far that repeats itself."""
    chosen = random.Random(seed)
    logits = [chosen.uniform(-3, 3) for _ in range(12)]
    return logits, chosen.choices(range(12), k=5), chosen.choices(range(12), k=seed % 7)


@pytest.mark.parametrize("sampling", [EVERYTHING, *ONE_BY_ONE])
@pytest.mark.parametrize("greedy", [False, True])
def test_penalties_and_biases_by_their_definitions(sampling, greedy, shaped):
    for seed in range(14):
        logits, prompt, sampled = written(seed)
        asked = GenerationRequest(
            request_id="r",
            token_ids=prompt,
            max_tokens=9,
            sampling=SamplingConfig(**sampling),
            stop_token_ids=(0, 7),
            greedy=greedy,
        )
        expected = shaped(logits, asked.sampling, prompt=prompt, sampled=sampled, stops=(0, 7), greedy=greedy)
        (found,) = processed_logprobs(torch.tensor([logits]), [asked], [sampled]).tolist()
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_what_transformers_has_too_is_the_same_there():
    from transformers import (
        MinNewTokensLengthLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        SequenceBiasLogitsProcessor,
        TemperatureLogitsWarper,
    )

    bias = EVERYTHING["logit_bias"]
    for seed in range(14):
        logits, prompt, sampled = written(seed)
        ids, scores = torch.tensor([prompt + sampled]), torch.tensor([logits])
        for processor in (
            SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}),
            MinNewTokensLengthLogitsProcessor(len(prompt), 4, [0, 7]),
            RepetitionPenaltyLogitsProcessor(1.3),
            TemperatureLogitsWarper(0.7),
        ):
            scores = processor(ids, scores)
        asked = GenerationRequest(
            request_id="r",
            token_ids=prompt,
            max_tokens=9,
            sampling=SamplingConfig(temperature=0.7, repetition_penalty=1.3, min_tokens=4, logit_bias=bias),
            stop_token_ids=(0, 7),
        )
        found = processed_logprobs(torch.tensor([logits]), [asked], [sampled])
        torch.testing.assert_close(found, torch.log_softmax(scores, -1))


def test_a_request_without_penalties_beside_one_with_them_is_left_alone():
    plain, penalised = processed(request(), request(logit_bias={0: -100.0}))
    assert plain == pytest.approx(PROBABILITIES, abs=1e-6)
    assert penalised == pytest.approx([0, 0.6, 0.3, 0.1], abs=1e-6)
