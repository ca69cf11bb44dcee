"""What orchestrating a model call costs: CPU time of chains over a server that answers at once, and how it grows.

Chains of three model calls with two calculator calls, over HTTP from a server in another process, so that its time is
nobody's. Ours runs the real chat format, tools, collector and shards; TRL's asynchronous GRPO worker renders, calls
tools and reconciles tokens, and stores nothing. Without HTTP, over an engine in the process, ours is measured too.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs import HFAgentConfig, OpenAIConfig, RolloutConfig, TinyModelConfig
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.inference.generate import Generate
from agentfly_lib.inference.openai import OpenAIEngine
from agentfly_lib.models.tiny import ensure_tiny
from agentfly_lib.rollout import RolloutSeeds, collect
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.types import Problem
from benchmarks.peer_environments import PROGRAMS, NoPeerError, measure, peer_python, peer_site_packages
from benchmarks.report import Finding, show
from benchmarks.timing import cpu_seconds
from benchmarks.token_server import ANSWER, CALL, CALLS_PER_CHAIN

__all__ = ["main"]

CHAINS = (256, 1024, 4096)
REPEATS = 3


def main() -> bool:
    """Runs it; True if the bars are met. False without the peer."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = _model(Path(folder))
        except NoPeerError as error:
            print(error)
            return False
        ours: dict[int, float] = {}
        peer = memory = float("inf")
        with _server(model) as port:
            for chains in CHAINS:
                ours[chains] = min(
                    _own(model, "http", chains, port)["cpu_per_call"] for _ in range(REPEATS if chains <= 1024 else 1)
                )
            for _ in range(REPEATS):
                found = measure([peer_python("trl"), PROGRAMS / "trl_worker.py", model, port, "1024"])
                if found["calls"] != 1024 * CALLS_PER_CHAIN:
                    raise RuntimeError(f"the peer did other work: {found}")
                peer = min(peer, found["cpu"] / found["calls"])
            memory = _own(model, "memory", 1024, port)["bytes_per_chain"]
        inside = min(_own(model, "inside", 1024, "0")["cpu_per_call"] for _ in range(REPEATS))
    findings = [
        Finding(what="CPU per model call over HTTP, 256 chains", value=1000 * ours[256], unit="ms"),
        Finding(what="CPU per model call over HTTP, 1,024 chains", value=1000 * ours[1024], unit="ms", bar=1.5),
        Finding(what="CPU per model call over HTTP, 4,096 chains", value=1000 * ours[4096], unit="ms"),
        Finding(what="1,024 chains / 256 chains", value=ours[1024] / ours[256], unit="x", bar=1.6),
        Finding(what="ours / TRL's asynchronous worker, 1,024 chains", value=ours[1024] / peer, unit="x", bar=0.5),
        Finding(what="TRL's asynchronous worker, 1,024 chains", value=1000 * peer, unit="ms"),
        Finding(what="memory of a chain in flight", value=memory / 1024, unit="KiB", bar=150),
        Finding(what="CPU per model call without HTTP, 1,024 chains", value=1000 * inside, unit="ms"),
    ]
    return show("orchestration", findings, notes=f"trl 1.16.0; best of {REPEATS}, each in a process of its own")


def _model(folder: Path) -> Path:
    """The small model's tokenizer with the peer's chat template, which the peer must know by heart."""
    from transformers import AutoTokenizer

    template = peer_site_packages("trl") / "trl" / "chat_templates" / "qwen2_5.jinja"
    tokenizer = AutoTokenizer.from_pretrained(ensure_tiny(TinyModelConfig()).path)
    tokenizer.chat_template = template.read_text()
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def _server(model: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.token_server", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _own(model: Path, how: str, chains: int, port: str) -> dict[str, float]:
    return measure([sys.executable, "-m", "benchmarks.orchestration", how, model, str(chains), port])


def _measured(how: str, model: Path, chains: int, port: str) -> dict[str, float]:
    agent = build_agent(HFAgentConfig(max_turns=CALLS_PER_CHAIN), model)
    asyncio.run(_collect(agent, _generate(agent, how, port), 32))
    if how == "memory":
        tracemalloc.start()
        asyncio.run(_collect(agent, _generate(agent, how, port), chains))
        return {"bytes_per_chain": tracemalloc.get_traced_memory()[1] / chains}
    used = cpu_seconds()
    asyncio.run(_collect(agent, _generate(agent, how, port), chains))
    return {"cpu_per_call": (cpu_seconds() - used) / (chains * CALLS_PER_CHAIN)}


def _generate(agent: Agent, how: str, port: str) -> Generate:
    if how != "inside":
        config = OpenAIConfig(base_url=f"http://127.0.0.1:{port}/v1", tokens="ids", max_connections=8192)
        return OpenAIEngine(config, model="policy", format=agent.chat)
    turns: dict[str, int] = {}

    def reply(request: GenerationRequest) -> str:
        chain = request.request_id.rpartition("/")[0]
        turns[chain] = turns.get(chain, 0) + 1
        return CALL if turns[chain] < CALLS_PER_CHAIN else ANSWER

    return ScriptedGenerate(reply, format=agent.chat)


async def _collect(agent: Agent, generate: Generate, chains: int) -> None:
    problems = [
        (f"{index:05d}", Problem(id=str(index), messages=({"role": "user", "content": f"What is 12 * 7, {index}?"},)))
        for index in range(chains // 8)
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = RolloutStore.open(
            StepDirectory(Path(folder)), step=0, policy_version=0, group_ids=[name for name, _ in problems], chains=8
        )
        collected = await collect(
            agent,
            generate,
            problems,
            store,
            config=RolloutConfig(chains=8, max_concurrency=chains),
            seeds=RolloutSeeds(run_seed=0, step=0),
        )
    if collected.progress.failures:
        raise RuntimeError(f"chains failed: {collected.progress}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [how, model, chains, port]:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            print(json.dumps(_measured(how, Path(model), int(chains), port)))
        case _:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            sys.exit(0 if main() else 1)
