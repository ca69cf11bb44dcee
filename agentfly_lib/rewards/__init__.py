"""Rewards: `@reward`, how trajectories are scored, and the rewards we ship, one per file."""

from agentfly_lib.rewards.code_tests import code_tests
from agentfly_lib.rewards.composite import CompositeReward, Part
from agentfly_lib.rewards.environment import environment, environment_return
from agentfly_lib.rewards.exact_match import exact_match
from agentfly_lib.rewards.factory import RewardFactory, reward_factory
from agentfly_lib.rewards.format import format_followed
from agentfly_lib.rewards.group_judge import group_judge
from agentfly_lib.rewards.group_reward import GroupReward, group_reward
from agentfly_lib.rewards.llm_judge import llm_judge
from agentfly_lib.rewards.math_equal import math_equal
from agentfly_lib.rewards.overlong import overlong
from agentfly_lib.rewards.registry import build_reward, get_reward
from agentfly_lib.rewards.reward import Reward, RewardContext, reward
from agentfly_lib.rewards.scoring import score_groups
from agentfly_lib.rewards.token_f1 import token_f1
from agentfly_lib.rewards.tool_use import tool_use

__all__ = [
    "CompositeReward",
    "GroupReward",
    "Part",
    "Reward",
    "RewardContext",
    "RewardFactory",
    "build_reward",
    "code_tests",
    "environment",
    "environment_return",
    "exact_match",
    "format_followed",
    "get_reward",
    "group_judge",
    "group_reward",
    "llm_judge",
    "math_equal",
    "overlong",
    "reward",
    "reward_factory",
    "score_groups",
    "token_f1",
    "tool_use",
]
