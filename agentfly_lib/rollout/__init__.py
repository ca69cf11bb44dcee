"""Rollouts: one chain, many chains, and the groups they make, written as they finish."""

from agentfly_lib.rollout.agent import ChainAgent, tool_messages
from agentfly_lib.rollout.chain import run_chain
from agentfly_lib.rollout.clock import Activity, ActivityClock, CollectTimes
from agentfly_lib.rollout.collector import Collected, collect
from agentfly_lib.rollout.dynamic import SignalReport, collect_with_signal
from agentfly_lib.rollout.limits import ChainLimits
from agentfly_lib.rollout.progress import CollectProgress
from agentfly_lib.rollout.seeds import RolloutSeeds, turn_seed
from agentfly_lib.rollout.segment import SegmentBuilder
from agentfly_lib.rollout.slots import ChainSlots

__all__ = [
    "Activity",
    "ActivityClock",
    "ChainAgent",
    "ChainLimits",
    "ChainSlots",
    "CollectProgress",
    "CollectTimes",
    "Collected",
    "RolloutSeeds",
    "SegmentBuilder",
    "SignalReport",
    "collect",
    "collect_with_signal",
    "run_chain",
    "tool_messages",
    "turn_seed",
]
