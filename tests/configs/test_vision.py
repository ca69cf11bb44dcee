"""What a recipe may say about a vision tower."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.configs import ColoursDataConfig, TinyVisionModelConfig, load_config
from agentfly_lib.errors import ConfigError

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "vision-ci.toml"


def test_the_recipe_of_the_small_model_that_sees() -> None:
    config = load_config(RECIPE, ["learner.lora.rank=8", "learner.lora.vision=true"])
    assert config.model == TinyVisionModelConfig()
    assert isinstance(config.data, ColoursDataConfig)
    assert not config.learner.freeze_vision
    assert config.learner.lora is not None
    assert config.learner.lora.vision


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["learner.freeze_vision=true", "learner.lora.vision=true"], "take one"),
        (["learner.lora.vision=true", "inference.lora_sync=adapter"], "inference.lora_sync='merged'"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(RECIPE, changes)
