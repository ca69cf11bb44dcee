"""A curriculum: problems are drawn with weights that follow how they went of late.

The state is a function of the outcomes of the steps before, in order, and so of the scores on disk: `advance` takes it
one step on. It is kept in `curriculum.json`, from which a resume goes on; without that file, or with one that is ahead
of the step, it is made again from the scores. The draw is a pure function of state, step and seed.

Where collections run ahead of updates by a lag, a step is drawn from the state as it was so many steps before: of the
newest outcomes it would depend on chance whether they were known in time. So the state remembers its last ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentfly_lib.configs.collection import CurriculumOrderConfig

__all__ = ["CurriculumState", "advance", "curriculum_order", "weights"]

_UNTRIED = 0.5


class CurriculumState(BaseModel):
    """`curriculum.json`: recent success after the first `steps` steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = 0
    rates: dict[int, float] = {}
    """Row of the training problems -> recent success rate, for those that were tried."""
    earlier: tuple[dict[int, float], ...] = ()
    """The rates after the steps before, oldest first: as many as the lag asks for."""

    def before(self, steps: int) -> CurriculumState:
        """The state so many steps ago, or at the start. Raises `ValueError` if that is not remembered."""
        steps = min(steps, self.steps)
        if steps > len(self.earlier):
            raise ValueError(f"the state {steps} steps ago is not remembered, only the last {len(self.earlier)}")
        if not steps:
            return self
        place = len(self.earlier) - steps
        return CurriculumState(steps=self.steps - steps, rates=self.earlier[place], earlier=self.earlier[:place])


def advance(
    state: CurriculumState, outcomes: Mapping[int, Sequence[float]], config: CurriculumOrderConfig, *, remember: int = 0
) -> CurriculumState:
    """The state one step later; `outcomes` are those of the step's chains by row, empty where none could be scored.

    It remembers the states of so many steps before it.
    """
    rates = dict(state.rates)
    for row, values in sorted(outcomes.items()):
        if values:
            mean = fmean(min(max(value, 0.0), 1.0) for value in values)
            rates[row] = (1 - config.recency) * rates.get(row, _UNTRIED) + config.recency * mean
    earlier = (*state.earlier, state.rates)[-remember:] if remember else ()
    return CurriculumState(steps=state.steps + 1, rates=rates, earlier=earlier)


def weights(state: CurriculumState, num_train: int, config: CurriculumOrderConfig) -> np.ndarray:
    """floor + (1 - floor) 4 p (1 - p) of every training problem, in [floor, 1]; [num_train]."""
    rates = np.full(num_train, _UNTRIED)
    for row, rate in state.rates.items():
        rates[row] = rate
    return config.floor + (1 - config.floor) * 4 * rates * (1 - rates)


def curriculum_order(
    state: CurriculumState, num_train: int, step: int, seed: int, config: CurriculumOrderConfig
) -> list[int]:
    """All training problems in the order in which `step` asks for them: weighted draws without replacement.

    By the Gumbel-top-k trick: rows sorted by ln w + g with independent standard Gumbel noise g (arXiv 1903.06059).
    """
    uniform = np.random.Generator(np.random.PCG64([seed & 0xFFFFFFFF, step])).random(num_train)
    noise = -np.log(-np.log(np.clip(uniform, 1e-300, 1 - 1e-16)))
    return np.argsort(-(np.log(weights(state, num_train, config)) + noise), kind="stable").tolist()
