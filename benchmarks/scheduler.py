"""How close a collection comes to the best possible schedule, over an engine and tools whose costs are known exactly.

512 chains of three turns on an engine of 128 slots, real collector, chat format, tools and shards; and 128 chains, for
which nothing ever waits for a slot. The bound is the larger of all tokens at the engine's peak rate and the longest
chain with nobody beside it. Each case runs in virtual time, where only the schedule counts, and in real time, where the
event loop's own work counts too.

Beside it stands what other schedules of the same script take: lock-step turns, whose tools run at the same time or one
after another (computed), and the same collection over an engine that knows every length and takes the longest first.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs import HFAgentConfig, RolloutConfig, TinyModelConfig
from agentfly_lib.inference.generate import Generate
from agentfly_lib.models.tiny import ensure_tiny
from agentfly_lib.rollout import RolloutSeeds, collect
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from benchmarks import virtual_time
from benchmarks.report import Finding, show
from benchmarks.simulated import DELAYS, Delays, Script, SimulatedEngine

__all__ = ["follow", "lock_step_seconds", "main", "over_ideal", "scripted_agent"]

TURNS = 3
SLOTS = 128
DRAWS = 3


def main() -> bool:
    """Runs it; True if the bars are met."""
    findings = [
        finding
        for chains, bar, stretch in ((4 * SLOTS, 1.30, 1.15), (SLOTS, 1.10, None))
        for delays in DELAYS
        for finding in _case(chains, delays, bar=bar, stretch=stretch)
    ]
    return show(
        "scheduler",
        findings,
        notes=f"in virtual time the median over {DRAWS} draws of the script, in real time the first of them",
    )


def _case(chains: int, delays: Delays, *, bar: float, stretch: float | None) -> list[Finding]:
    scripts = [Script.draw(chains, TURNS, delays, seed=seed) for seed in range(DRAWS)]
    what = f"{chains} chains, {SLOTS} slots, tools {delays.replace('_', '-')}"

    def finding(how: str, ratios: list[float], bar: float | None = None) -> Finding:
        return Finding(what=f"{what}: {how} / ideal", value=statistics.median(ratios), unit="x", bar=bar)

    found = [
        finding("virtual time", [virtual_time.run(over_ideal(script, slots=SLOTS)) for script in scripts], bar),
        finding("real time", [asyncio.run(over_ideal(scripts[0], slots=SLOTS))], bar),
    ]
    if stretch is not None:
        known = [virtual_time.run(over_ideal(script, slots=SLOTS, longest_first=True)) for script in scripts]
        found.append(finding("if every length were known", known, stretch))
    return [
        *found,
        finding("lock-step", [_lock_step_ratio(script) for script in scripts]),
        finding("lock-step, tools one by one", [_lock_step_ratio(script, one_by_one=True) for script in scripts]),
    ]


async def over_ideal(script: Script, *, slots: int, longest_first: bool = False) -> float:
    """Seconds of a collection of the script's chains by the event loop's clock, over the bound."""
    agent = scripted_agent(script)
    async with SimulatedEngine(script, agent.chat, slots=slots, longest_first=longest_first) as engine:
        return await follow(script, agent, engine) / script.ideal(engine)


def scripted_agent(script: Script) -> Agent:
    """Whose tool waits as the script says."""
    turns = script.lengths.shape[1]
    return build_agent(
        HFAgentConfig(max_turns=turns, tools=("benchmarks.simulated:wait",)), ensure_tiny(TinyModelConfig()).path
    )


async def follow(script: Script, agent: Agent, generate: Generate) -> float:
    """Seconds, by the event loop's clock, of a collection of all the script's chains at the same time."""
    problems = script.problems
    with tempfile.TemporaryDirectory() as folder:
        store = RolloutStore.open(
            StepDirectory(Path(folder)), step=0, policy_version=0, group_ids=[name for name, _ in problems], chains=1
        )
        clock = asyncio.get_running_loop().time
        started = clock()
        collected = await collect(
            agent,
            generate,
            problems,
            store,
            config=RolloutConfig(
                chains=1,
                max_concurrency=len(problems),
                max_turn_tokens=8192,
                max_sampled_tokens=32768,
                context_length=65536,
            ),
            seeds=RolloutSeeds(run_seed=0, step=0),
        )
        seconds = clock() - started
    if collected.progress.failures or collected.progress.sampled_tokens != int(script.lengths.sum()):
        raise RuntimeError(f"the script was not followed: {collected.progress}")
    return seconds


def lock_step_seconds(script: Script, engine: SimulatedEngine, *, one_by_one: bool = False) -> float:
    """What a loop takes that generates a turn for all chains, runs all their tools, and goes on together.

    one_by_one: each tool waits for the one before it; else all of a turn run at the same time.
    """
    total = 0.0
    for turn in range(script.lengths.shape[1]):
        lengths = sorted(script.lengths[:, turn])
        for first in range(0, len(lengths), engine.slots):
            batch = lengths[first : first + engine.slots]
            done = 0
            for place, length in enumerate(batch):
                total += (length - done) * engine.step(len(batch) - place)
                done = length
        if turn < script.delays.shape[1]:
            waits = script.delays[:, turn]
            total += float(waits.sum() if one_by_one else waits.max())
    return total


def _lock_step_ratio(script: Script, *, one_by_one: bool = False) -> float:
    agent = build_agent(HFAgentConfig(), ensure_tiny(TinyModelConfig()).path)
    engine = SimulatedEngine(script, agent.chat, slots=SLOTS)
    return lock_step_seconds(script, engine, one_by_one=one_by_one) / script.ideal(engine)


if __name__ == "__main__":
    started = time.perf_counter()
    met = main()
    print(f"{time.perf_counter() - started:.0f} s")
    sys.exit(0 if met else 1)
