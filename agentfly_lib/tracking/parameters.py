"""Which parameters of a run stand in MLflow: those that tell it from other runs, and not a hundred defaults.

The whole resolved config is there too, as `config.toml`, and `agentfly compare` names every key that differs. But a
page with a column for each key of a config hides the few that matter.
"""

from __future__ import annotations

from typing import Any

from agentfly_lib.configs.load import flatten, flatten_config
from agentfly_lib.configs.run import RunConfig

__all__ = ["run_parameters"]

_ALWAYS = frozenset(
    {
        "agent.environment.name",
        "agent.max_turns",
        "agent.reward.name",
        "agent.tools",
        "learner.ranks",
        "model.name_or_path",
        "optim.lr",
        "optim.minibatches",
        "rollout.chains",
        "rollout.max_policy_lag",
        "rollout.problems_per_step",
        "rollout.sampling.temperature",
        "run.seed",
        "run.steps",
    }
)
"""Told by every run that has them, so that a column is never blank where a run took the default."""
_NEVER = ("run.name", "run.root", "tracking.", "ray.")
"""Where a run lies and how it is watched changes nothing about what comes out."""


def run_parameters(config: RunConfig) -> dict[str, Any]:
    """By dotted key: what every run tells, which kind each part is of, and what differs from its default."""
    chosen = set(flatten(config.model_dump(mode="json", exclude_defaults=True)))
    return {
        key: value
        for key, value in sorted(flatten_config(config).items())
        if not key.startswith(_NEVER) and value is not None and (key in chosen | _ALWAYS or key.endswith(".type"))
    }
