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
    """Train on what the step's problems give."""

    type: Literal["none"] = "none"


class SignalSamplingConfig(Config):
    """Collect further problems in place of those whose chains all did equally well (DAPO, arXiv 2503.14476).

    Judged by the raw outcome, before any shaping; at most `max_refills` times, then the step trains on what there is.
    """

    type: Literal["signal"] = "signal"
    max_refills: PositiveInt = 3
    """Rounds of further problems in one step."""
    outcome: str | None = None
    """Part of the reward that is the raw outcome; unset: the first part of a composite, else the reward itself."""


DynamicSamplingConfig = Annotated[NoDynamicSamplingConfig | SignalSamplingConfig, Field(discriminator="type")]


class EpochOrderConfig(Config):
    """Every problem once per epoch, in seeded random order."""

    type: Literal["epochs"] = "epochs"


class CurriculumOrderConfig(Config):
    """Problems are drawn with weights: the more their recent success is in doubt, the more often.

    A problem of recent success rate p weighs floor + (1 - floor) 4 p (1 - p); what was never tried counts as p = 1/2.
    """

    type: Literal["curriculum"] = "curriculum"
    recency: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Weight of the newest try: p <- (1 - recency) p + recency * mean outcome, outcomes clipped to [0, 1]."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Least weight, so that no problem is given up."""
    outcome: str | None = None
    """Part of the reward that says success; unset: the first part of a composite, else the reward itself."""


ProblemOrderConfig = Annotated[EpochOrderConfig | CurriculumOrderConfig, Field(discriminator="type")]
