"""What orchestrating a model call costs us: CPU time of chains over an engine that answers at once, and how it grows.

Chains of three model calls with two calculator calls run through the real chat format, tools, collector and shards.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs import HFAgentConfig, RolloutConfig, TinyModelConfig
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.models.tiny import ensure_tiny
from agentfly_lib.rollout import RolloutSeeds, collect
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.types import Problem
from benchmarks.report import Finding, show

__all__ = ["main"]

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 7"}}\n</tool_call>'
ANSWER = "The answer is \\boxed{84}"
CALLS_PER_CHAIN = 3


def main() -> bool:
    """Runs it; True if the bars are met."""
    asyncio.run(_chains(64))
    costs = {chains: asyncio.run(_chains(chains)) for chains in (256, 1024)}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    findings = [
        Finding(what=f"CPU per model call, {chains} chains", value=1000 * cost, unit="ms", bar=1.5)
        for chains, cost in costs.items()
    ]
    findings.append(Finding(what="cost at 1,024 / cost at 256", value=costs[1024] / costs[256], unit="ratio", bar=1.6))
    findings.append(Finding(what="peak memory of the process", value=memory, unit="MiB"))
    return show("orchestration", findings)


async def _chains(chains: int) -> float:
    """CPU seconds per model call of that many chains at the same time."""
    agent = build_agent(HFAgentConfig(max_turns=CALLS_PER_CHAIN), ensure_tiny(TinyModelConfig()).path)
    turns: dict[str, int] = {}

    def reply(request: GenerationRequest) -> str:
        chain = request.request_id.rpartition("/")[0]
        turns[chain] = turns.get(chain, 0) + 1
        return CALL if turns[chain] < CALLS_PER_CHAIN else ANSWER

    problems = [
        (f"{index:05d}", Problem(id=str(index), messages=({"role": "user", "content": f"What is 12 * 7, {index}?"},)))
        for index in range(chains // 8)
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = RolloutStore.open(
            StepDirectory(Path(folder)), step=0, policy_version=0, group_ids=[name for name, _ in problems], chains=8
        )
        started = time.process_time()
        await collect(
            agent,
            ScriptedGenerate(reply, format=agent.chat),
            problems,
            store,
            config=RolloutConfig(chains=8, max_concurrency=chains),
            seeds=RolloutSeeds(run_seed=0, step=0),
        )
        return (time.process_time() - started) / (chains * CALLS_PER_CHAIN)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
