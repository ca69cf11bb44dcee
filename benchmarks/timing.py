"""Fair timing: contestants take turns after a warm-up, and both wall and processor seconds are kept of every turn.

Processor seconds are those of this process and of the children that ended in between; where the machine is busy with
something else, they are the figures to trust.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Timings", "cpu_seconds", "interleaved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Of one contestant: seconds of each turn."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def best_wall(self) -> float:
        return min(self.wall)

    @property
    def best_cpu(self) -> float:
        return min(self.cpu)

    @property
    def median_cpu(self) -> float:
        return statistics.median(self.cpu)


def interleaved(
    contestants: Mapping[str, Callable[[], object]], *, turns: int = 3, warm_up: int = 1
) -> dict[str, Timings]:
    """Runs each contestant `warm_up + turns` times, in turn, and keeps the last `turns`."""
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + turns):
        for name, contestant in contestants.items():
            gc.collect()
            began, used = time.perf_counter(), cpu_seconds()
            contestant()
            if turn >= warm_up:
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(cpu_seconds() - used)
    return {name: Timings(wall=tuple(wall[name]), cpu=tuple(cpu[name])) for name in contestants}


def cpu_seconds() -> float:
    """Spent by this process, and by its children that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)
