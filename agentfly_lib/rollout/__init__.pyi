from .agent import ChainAgent as ChainAgent, tool_messages as tool_messages
from .chain import run_chain as run_chain
from .clock import Activity as Activity, ActivityClock as ActivityClock, CollectTimes as CollectTimes
from .collector import Collected as Collected, collect as collect
from .dynamic import SignalReport as SignalReport, collect_with_signal as collect_with_signal
from .limits import ChainLimits as ChainLimits
from .progress import CollectProgress as CollectProgress
from .seeds import RolloutSeeds as RolloutSeeds, turn_seed as turn_seed
from .segment import SegmentBuilder as SegmentBuilder
from .slots import ChainSlots as ChainSlots
