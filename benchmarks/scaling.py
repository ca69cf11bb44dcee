"""Whether anything costs more for each unit of work when there is more of it: engines, chains in flight, ranks.

A simulated cluster: 1 to 16 engines of 64 slots, 256 chains of three turns for each. Before every engine stands the
real mailbox of its Ray actor, called without Ray and without a process of its own; before these the real links,
balancer and client, collector, chat format, tools and shards. Nothing waits for real in virtual time, so processor time
is what all of it costs, the simulated engines included, whose work for a call is the same at every size.

What must not happen is that a call costs more in a larger cluster: something that looks at all engines or all chains
for each request would be 16 times as dear at the end. The bar of 1.6 leaves room for the processor's caches, which
4,096 chains miss more often than 256, and for noise. The largest size is held against the cheapest, so that the fixed
costs of a small one hide nothing.

How well the engines are filled is told by wall time in virtual seconds over the bound of `benchmarks.scheduler`, with
as many times the slots; one and two engines also run in real time. The update of a learner runs on one rank and on two
(gloo): processor seconds of both for the same work, over those of one alone.

python -m benchmarks.scaling
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any
from unittest import mock

from agentfly_lib.configs import RunConfig, TinyModelConfig
from agentfly_lib.inference import client
from agentfly_lib.inference.generate import Generate
from agentfly_lib.inference.server import EngineServer
from agentfly_lib.models.tiny import ensure_tiny
from agentfly_lib.orphan import OrphanTimer
from agentfly_lib.refs import EngineRef, ModelRef
from benchmarks import virtual_time
from benchmarks.report import Finding, show
from benchmarks.scheduler import follow, scripted_agent
from benchmarks.scored_rollouts import scored_groups
from benchmarks.simulated import Script, SimulatedEngine
from benchmarks.timing import cpu_seconds

__all__ = ["main"]

ENGINES = (1, 2, 4, 8, 16)
CHAINS = (64, 256, 1024, 4096)
TURNS = 3
SLOTS = 64
REPEATS = 3
_UPDATES = 3
_SECONDS = 300
"""Within which two ranks have started and updated."""


def main() -> bool:
    """Runs it; True if the bars are met."""
    return show("scaling", [*_cluster(), *_one_engine(), *_real_time(), *_ranks()], notes=f"best of {REPEATS} in turn")


def _cluster() -> list[Finding]:
    """More engines, with as many more chains."""
    sizes = {engines: 4 * SLOTS * engines for engines in ENGINES}
    cpu, ratios = _costs([(chains, engines) for engines, chains in sizes.items()])
    found = []
    for engines, chains in sizes.items():
        what = f"{engines} engines, {chains} chains"
        found.append(Finding(what=f"{what}: CPU per call", value=1000 * cpu[chains, engines], unit="ms"))
        found.append(Finding(what=f"{what}: wall / ideal", value=ratios[chains, engines], unit="x", bar=1.3))
    largest = cpu[sizes[ENGINES[-1]], ENGINES[-1]]
    what = f"CPU per call, {ENGINES[-1]} engines / the cheapest size"
    return [*found, Finding(what=what, value=largest / min(cpu.values()), unit="x", bar=1.6)]


def _one_engine() -> list[Finding]:
    """More chains before a single engine."""
    cpu, _ = _costs([(chains, 1) for chains in CHAINS])
    found = [
        Finding(what=f"1 engine, {chains} chains: CPU per call", value=1000 * cpu[chains, 1], unit="ms")
        for chains in CHAINS
    ]
    what = f"CPU per call, {CHAINS[-1]} chains on one engine / the cheapest size"
    return [*found, Finding(what=what, value=cpu[CHAINS[-1], 1] / min(cpu.values()), unit="x", bar=1.6)]


def _real_time() -> list[Finding]:
    found = []
    for engines in (1, 2):
        script = Script.draw(2 * SLOTS * engines, TURNS, "long_tailed")
        ratio = asyncio.run(_over_ideal(script, engines))
        found.append(Finding(what=f"{engines} engines in real time: wall / ideal", value=ratio, unit="x", bar=1.3))
    return found


def _costs(sizes: Sequence[tuple[int, int]]) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """By (chains, engines): processor seconds of a call, best of the turns, and wall over ideal in virtual time."""
    cpu: dict[tuple[int, int], float] = {}
    ratios: dict[tuple[int, int], float] = {}
    virtual_time.run(_over_ideal(Script.draw(64, TURNS, "long_tailed"), 1))  # warm
    for _ in range(REPEATS):
        for chains, engines in sizes:
            script = Script.draw(chains, TURNS, "long_tailed")
            used = cpu_seconds()
            ratios[chains, engines] = virtual_time.run(_over_ideal(script, engines))
            spent = (cpu_seconds() - used) / script.lengths.size
            cpu[chains, engines] = min(spent, cpu.get((chains, engines), spent))
    return cpu, ratios


async def _over_ideal(script: Script, engines: int) -> float:
    agent = scripted_agent(script)
    async with AsyncExitStack() as running:
        actors = {
            f"e{number}": _Actor(await running.enter_async_context(SimulatedEngine(script, agent.chat, slots=SLOTS)))
            for number in range(engines)
        }
        with mock.patch.object(client, "find_engine", lambda name, namespace: actors[name]):
            generate = client.RayGenerate(EngineRef(names=tuple(actors), namespace="simulated", policy_version=0))
        seconds = await follow(script, agent, generate)
        return seconds / script.ideal(SimulatedEngine(script, agent.chat, slots=SLOTS), engines=engines)


class _Server(EngineServer):
    """An engine's server over another engine."""

    def __init__(self, engine: Generate) -> None:
        self._engine: Any = engine
        self._mailboxes = {}
        self._sampled_tokens = 0
        self._orphan = OrphanTimer("a simulated engine")


class _Actor:
    """What a client uses of Ray's handle, without Ray."""

    def __init__(self, engine: Generate) -> None:
        server = _Server(engine)
        self.submit, self.collect = _Method(server.submit), _Method(server.collect)


class _Method:
    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call


def _ranks() -> list[Finding]:
    alone, both = _updates(1), _updates(2)
    return [
        Finding(what="an update on 1 rank, CPU", value=alone, unit="s"),
        Finding(what="the same on 2 ranks, CPU of both", value=both, unit="s"),
        Finding(what="2 ranks / 1 rank, CPU for the same work", value=both / alone, unit="x", bar=1.6),
    ]


def _updates(world: int) -> float:
    """Processor seconds of the cheapest update, of all ranks together."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.scaling"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), str(port)], stdout=subprocess.PIPE, env=variables)
        for rank in range(world)
    ]
    try:
        spent = [json.loads(rank.communicate(timeout=_SECONDS)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return min(map(sum, zip(*spent, strict=True)))


def _rank(rank: int, world: int, port: int) -> list[float]:
    """Processor seconds of each update but the first."""
    from agentfly_lib.training.learner import LearnerRank

    config = RunConfig.model_validate(
        {
            "run": {"name": "scaling"},
            "model": {"type": "tiny"},
            "data": {"type": "arithmetic"},
            "rollout": {"problems_per_step": 16, "chains": 8},
            "optim": {"lr": 1e-5, "minibatches": 2},
            "learner": {"device": "cpu", "zero_stage": 2, "ranks": world, "microbatch_tokens": 2048},
        }
    )
    path = ensure_tiny(TinyModelConfig()).path
    learner = LearnerRank()
    learner.setup(
        rank=rank,
        world=world,
        address="127.0.0.1",
        port=port,
        config=config,
        model=ModelRef(path=path, fingerprint="tiny"),
    )
    groups = scored_groups(16, 8, shortest=60, longest=120, vocabulary=512)
    spent = []
    for step in range(1 + _UPDATES):
        used = cpu_seconds()
        learner.update_from(groups, step)
        spent.append(cpu_seconds() - used)
    learner.close()
    return spent[1:]


if __name__ == "__main__":
    match sys.argv[1:]:
        case [rank, world, port]:
            print(json.dumps(_rank(int(rank), int(world), int(port))))
        case _:
            started = time.perf_counter()
            met = main()
            print(f"{time.perf_counter() - started:.0f} s")
            sys.exit(0 if met else 1)
