"""The learning rule. Definitions and their sources stand in `agentfly_lib.training`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from agentfly_lib.configs.base import Config

__all__ = [
    "AdvantageConfig",
    "AlgorithmConfig",
    "ClipConfig",
    "CorrectionConfig",
    "GrpoAdvantageConfig",
    "KlConfig",
    "NoCorrectionConfig",
    "OptimConfig",
    "TisTokenConfig",
]


class GrpoAdvantageConfig(Config):
    """A_i = (R_i - mean) / (std + 1e-6) within the group, sample standard deviation (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"


AdvantageConfig = GrpoAdvantageConfig


class ClipConfig(Config):
    """Clipping of the importance ratio; the defaults are DAPO's clip-higher (arXiv 2503.14476)."""

    low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    high: PositiveFloat = 0.28
    dual: Annotated[float, Field(gt=1)] | Literal["none"] = 3.0
    """Bound of the loss for negative advantages: min(L, -dual * A); `none` for no bound."""


class KlConfig(Config):
    """A penalty against a frozen copy of the starting policy, off at coefficient 0."""

    coefficient: NonNegativeFloat = 0.0
    estimator: Literal["k3"] = "k3"


class NoCorrectionConfig(Config):
    """Trust that engine and learner agree."""

    type: Literal["none"] = "none"


class TisTokenConfig(Config):
    """Truncated importance sampling per token: weight min(exp(old - recorded), cap)."""

    type: Literal["tis_token"] = "tis_token"
    cap: Annotated[float, Field(ge=1)] = 2.0


CorrectionConfig = Annotated[NoCorrectionConfig | TisTokenConfig, Field(discriminator="type")]


class AlgorithmConfig(Config):
    """What is maximised."""

    advantage: AdvantageConfig = GrpoAdvantageConfig()
    clip: ClipConfig = ClipConfig()
    aggregation: Literal["token_mean"] = "token_mean"
    """sum(mask * L) / sum(mask) over the global optimizer batch."""
    kl: KlConfig = KlConfig()
    correction: CorrectionConfig = TisTokenConfig()
    mask_truncated: bool = False
    """Leave trajectories that a limit cut out of the loss (they still count in their group)."""


class OptimConfig(Config):
    """AdamW and its schedule."""

    lr: PositiveFloat = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the rate rises linearly from 0."""
    final_lr_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Linear decay over the run's steps down to this fraction of `lr`; 1 keeps it constant."""
    minibatches: PositiveInt = 1
    """Optimizer updates per step; the trajectories of a step are dealt into this many batches."""

    @model_validator(mode="after")
    def _betas(self) -> OptimConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {self.betas}")
        return self
