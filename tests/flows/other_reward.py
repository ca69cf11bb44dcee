"""A reward of a user's own, named in tests as `tests.flows.other_reward:short_answer`."""

from agentfly_lib.rewards import reward
from agentfly_lib.types import Trajectory


@reward(inline=True)
def short_answer(trajectory: Trajectory) -> float:
    """1 for fewer than 20 sampled tokens."""
    return float(trajectory.num_sampled < 20)
