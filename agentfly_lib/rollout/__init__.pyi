from .agent import ChainAgent, tool_messages
from .chain import run_chain
from .clock import Activity, ActivityClock, CollectTimes
from .collector import Collected, collect
from .dynamic import SignalReport, collect_with_signal
from .limits import ChainLimits
from .progress import CollectProgress
from .seeds import RolloutSeeds, turn_seed
from .segment import SegmentBuilder
from .slots import ChainSlots

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
