"""Parameters in MLflow: what tells runs apart, and nothing else."""

from __future__ import annotations

from pathlib import Path

from agentfly_lib.configs import load_config
from agentfly_lib.configs.load import flatten
from agentfly_lib.tracking.parameters import run_parameters


def test_flatten():
    assert flatten({"a": 1, "b": {"c": {"d": 2}, "e": [3]}, "f": {}}) == {"a": 1, "b.c.d": 2, "b.e": [3]}


def parameters(*changes: str) -> dict[str, object]:
    return run_parameters(load_config(Path("recipes/ci.toml"), changes))


def test_what_a_recipe_says_and_what_every_run_tells():
    found = parameters()
    assert found["optim.lr"] == 5e-4
    assert found["agent.tools"] == ["calculator"]
    assert found["data.train_problems"] == 512  # not the default
    assert found["rollout.sampling.temperature"] == 1.0  # the default, which every run tells
    assert found["model.type"] == "tiny"
    assert not [key for key in found if key.startswith(("tracking.", "ray.")) or key in ("run.root", "run.name")]
    assert "optim.eps" not in found
    assert len(found) < 60


def test_a_change_is_told_wherever_it_is():
    changed = parameters("optim.eps=1e-6", "algorithm.correction.type=none")
    assert changed["optim.eps"] == 1e-6
    assert changed["algorithm.correction.type"] == "none"  # another kind, although its own values are defaults
