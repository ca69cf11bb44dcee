"""What of a sampling config makes the distribution another than the policy's: every key is known as one kind of it."""

from __future__ import annotations

from typing import Any

import pytest

from agentfly_lib.configs import SamplingConfig

CUTS = {"top_p": 0.5, "top_k": 3, "min_p": 0.1}
RESHAPES = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "min_tokens": 1,
    "logit_bias": {1: 1.0},
}


def test_every_key_is_of_one_kind() -> None:
    assert {"temperature", "stop", *CUTS, *RESHAPES} == SamplingConfig.model_fields.keys()


@pytest.mark.parametrize(("key", "value"), (CUTS | RESHAPES).items())
def test_what_alters_the_distribution_says_how(key: str, value: Any) -> None:
    config = SamplingConfig.model_validate({key: value, "temperature": 0.5, "stop": ["x"]})
    assert (config.altered, config.truncates, config.reshapes) == ([key], key in CUTS, key in RESHAPES)


def test_a_temperature_and_texts_that_end_a_turn_alter_nothing() -> None:
    config = SamplingConfig(temperature=0.5, stop=("x",))
    assert (config.altered, config.truncates, config.reshapes) == ([], False, False)
