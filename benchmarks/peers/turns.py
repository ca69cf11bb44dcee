"""A contestant's side of `benchmarks.contestant`: a number of chains in, a line of JSON out.

Imported by the programs beside it, in environments that know nothing of this project. Whatever else is printed once it
is imported goes to standard error.
"""

import asyncio
import gc
import json
import resource
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable

__all__ = ["turns"]

_answers, sys.stdout = sys.stdout, sys.stderr
_WARM_UP = 32


async def turns(rollouts: Callable[[int], Awaitable[int]]) -> None:
    """Measures `rollouts`, which takes a number of chains and gives the model calls that they made, after a warm-up.

    `N` asks for the seconds of N chains, `N memory` for the most bytes that Python held meanwhile.
    """
    _answer({"calls": await rollouts(_WARM_UP)})
    while line := await asyncio.to_thread(sys.stdin.readline):
        chains, *what = line.split()
        _answer(await (_memory if what == ["memory"] else _seconds)(rollouts, int(chains)))


def _answer(found: dict[str, float]) -> None:
    print(json.dumps(found), file=_answers, flush=True)


async def _seconds(rollouts: Callable[[int], Awaitable[int]], chains: int) -> dict[str, float]:
    gc.collect()
    began, used = time.perf_counter(), _cpu_seconds()
    calls = await rollouts(chains)
    return {"cpu": _cpu_seconds() - used, "wall": time.perf_counter() - began, "calls": calls}


async def _memory(rollouts: Callable[[int], Awaitable[int]], chains: int) -> dict[str, float]:
    tracemalloc.start()
    await rollouts(chains)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"bytes": most}


def _cpu_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)
