"""Which problems a step collects: their order, and whether groups without a signal are replaced by others."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from agentfly_lib.configs.base import Config

__all__ = [
    "CurriculumOrderConfig",
    "DynamicSamplingConfig",
    "EpochOrderConfig",
    "NoDynamicSamplingConfig",
    "ProblemOrderConfig",
    "SignalSamplingConfig",
]


class NoDynamicSamplingConfig(Config):
    """Train on the step's problems as they are."""

    type: Literal["none"] = "none"


class SignalSamplingConfig(Config):
    """Collect further problems to replace those whose chains all did equally well (DAPO, arXiv 2503.14476).

    Chains are compared by their raw outcome, before any shaping. After `max_refills` rounds, the step trains on what
    there is.
    """

    type: Literal["signal"] = "signal"
    max_refills: PositiveInt = 3
    """Maximum number of rounds of further problems in one step."""
    outcome: str | None = None
    """The part of the reward that is the raw outcome. If unset: the first part of a composite reward, otherwise the
    reward itself."""


DynamicSamplingConfig = Annotated[NoDynamicSamplingConfig | SignalSamplingConfig, Field(discriminator="type")]


class EpochOrderConfig(Config):
    """Every problem once per epoch, in a seeded random order."""

    type: Literal["epochs"] = "epochs"


class CurriculumOrderConfig(Config):
    """Draws problems by weight: those whose recent success rate is closest to 1/2 most often.

    A problem with the recent success rate p has the weight floor + (1 - floor) 4 p (1 - p). A problem that was never
    tried counts as p = 1/2.
    """

    type: Literal["curriculum"] = "curriculum"
    recency: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Weight of the newest attempt: p <- (1 - recency) p + recency * mean outcome, outcomes clipped to [0, 1]."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Smallest weight, so that no problem is dropped for good."""
    outcome: str | None = None
    """The part of the reward that measures success. If unset: the first part of a composite reward, otherwise the
    reward itself."""


ProblemOrderConfig = Annotated[EpochOrderConfig | CurriculumOrderConfig, Field(discriminator="type")]
