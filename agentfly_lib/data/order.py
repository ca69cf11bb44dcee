"""Which training problems a step uses: a pure function, so that a resume needs to remember nothing.

Epochs are seeded permutations laid end to end; a step takes the next problems, across the end of an epoch too.
"""

from __future__ import annotations

from functools import lru_cache

from agentfly_lib.data.split import shuffled_order

__all__ = ["problems_of_step", "step_order"]


def problems_of_step(num_train: int, problems_per_step: int, step: int, seed: int) -> list[int]:
    """Indices of the training problems of `step` (from 0).

    Over any whole epoch every problem comes exactly once. Raises `ValueError` without problems or for a negative step.
    """
    if num_train < 1 or problems_per_step < 1 or step < 0:
        raise ValueError(f"no problems for step {step}: {num_train} training problems, {problems_per_step} per step")
    first = step * problems_per_step
    return [
        _epoch(num_train, seed, position // num_train)[position % num_train]
        for position in range(first, first + problems_per_step)
    ]


def step_order(num_train: int, problems_per_step: int, step: int, seed: int) -> list[int]:
    """Problems in the order in which `step` may ask for them: its own ones, then all others, shuffled.

    The latter come only if groups without a signal are replaced. Raises as `problems_of_step`.
    """
    own = problems_of_step(num_train, problems_per_step, step, seed)
    taken = set(own)
    return own + [row for row in shuffled_order(num_train, f"refill/{seed}/{step}") if row not in taken]


@lru_cache(maxsize=2)
def _epoch(num_train: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(shuffled_order(num_train, f"epoch/{seed}/{epoch}"))
