"""Rewards: `@reward`, how trajectories are scored, and the rewards we ship, one per file."""

from agentfly_lib.rewards.math_equal import math_equal
from agentfly_lib.rewards.registry import get_reward
from agentfly_lib.rewards.reward import Reward, RewardContext, reward
from agentfly_lib.rewards.scoring import score_groups

__all__ = ["Reward", "RewardContext", "get_reward", "math_equal", "reward", "score_groups"]
