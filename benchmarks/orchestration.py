"""What orchestrating a model call costs: CPU time of chains over a server that answers at once, and how it grows.

Chains of three model calls with two calculator calls, over HTTP from a server in another process, so that its time is
nobody's; it counts what it was asked, so that all do the same work. Ours runs the real chat format, tools, collector
and shards. TRL's asynchronous GRPO worker renders, calls tools and reconciles tokens; verifiers' agent does so behind
its interception server, and keeps a trace; neither stores anything. Without HTTP, over an engine in the process, ours
is measured beside verl's agent loop worker, which does the same and pads the batch.

All take turns, each in a process of its own that lives through the benchmark and has warmed up. A peer that is not
installed is left out, and the benchmark fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs import HFAgentConfig, OpenAIConfig, RolloutConfig, TinyModelConfig
from agentfly_lib.inference import Generation, GenerationRequest
from agentfly_lib.inference.generate import Generate
from agentfly_lib.inference.openai import OpenAIEngine
from agentfly_lib.models.tiny import ensure_tiny
from agentfly_lib.rollout import RolloutSeeds, collect
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.types import FinishReason, Problem
from benchmarks.contestant import Contestant, contestant
from benchmarks.peer_environments import PROGRAMS, NoPeerError, peer_python, peer_site_packages
from benchmarks.report import Finding, show
from benchmarks.token_server import CALLS_PER_CHAIN, Replies

__all__ = ["main"]

CHAINS = 1024
FEW, MANY = 256, 4096
REPEATS = 3
_TURN_SECONDS = 300
"""Within which a contestant starts, or its turn is over; 5 to 40 s are usual on an idle core."""


def main() -> bool:
    """Runs it; True if the bars are met and every peer was there."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        model = _model(Path(folder) / "model")
        replies = Path(folder) / "replies.json"
        replies.write_text(json.dumps(Replies(model).ids))
        server = running.enter_context(_server(model))
        commands, missing = _commands(model, server.port, replies)
        contestants = {
            name: running.enter_context(contestant(command, seconds=_TURN_SECONDS))
            for name, command in commands.items()
        }
        spent: dict[str, list[dict[str, float]]] = {}
        for turn in range(REPEATS):
            for name, asked in contestants.items():
                for chains in (FEW, CHAINS) if name == "ours" else (CHAINS,):
                    spent.setdefault(f"{name} {chains}", []).append(_turn(asked, chains, server))
            print(f"turn {turn + 1} of {REPEATS} is over", flush=True)
        spent[f"ours {MANY}"] = [_turn(contestants["ours"], MANY, server)]
        memory = contestants["ours"].ask(f"{CHAINS} memory", seconds=_TURN_SECONDS)["bytes"] / CHAINS
    cpu = {name: [1000 * each["cpu"] / each["calls"] for each in all_of] for name, all_of in spent.items()}
    wall = [1000 * each["wall"] / each["calls"] for each in spent[f"ours {CHAINS}"]]
    met = show(
        "orchestration",
        [*_our_findings(cpu, min(wall), memory), *_comparisons(cpu)],
        notes=f"trl 1.16.0, verifiers 0.4.0, verl 0.9.1; best of {REPEATS} turns, {MANY} chains once",
    )
    for line in missing:
        print(line)
    return met and not missing


def _our_findings(cpu: Mapping[str, Sequence[float]], wall: float, memory: float) -> list[Finding]:
    few, usual = cpu[f"ours {FEW}"], cpu[f"ours {CHAINS}"]
    what = "per model call over HTTP"
    return [
        Finding(what=f"CPU {what}, {FEW} chains", value=min(few), unit="ms"),
        Finding(what=f"CPU {what}, {CHAINS} chains", value=min(usual), unit="ms", bar=1.5),
        Finding(what=f"CPU {what}, {CHAINS} chains, median", value=statistics.median(usual), unit="ms"),
        Finding(what=f"wall {what}, {CHAINS} chains", value=wall, unit="ms"),
        Finding(what=f"CPU {what}, {MANY} chains", value=min(cpu[f"ours {MANY}"]), unit="ms"),
        Finding(what=f"{CHAINS} chains / {FEW} chains", value=min(usual) / min(few), unit="x", bar=1.6),
        Finding(what="memory of a chain in flight", value=memory / 1024, unit="KiB", bar=150),
        Finding(what="CPU per model call without HTTP", value=min(cpu[f"ours without HTTP {CHAINS}"]), unit="ms"),
    ]


def _comparisons(cpu: Mapping[str, Sequence[float]]) -> list[Finding]:
    """With each peer that was measured."""
    found = []
    for ours, peer, bar in (
        ("ours", "TRL's asynchronous worker", 0.5),
        ("ours", "verifiers", 0.2),
        ("ours without HTTP", "verl's agent loop without HTTP", 0.5),
    ):
        if theirs := cpu.get(f"{peer} {CHAINS}"):
            ratio = min(cpu[f"{ours} {CHAINS}"]) / min(theirs)
            found += [
                Finding(what=f"CPU per model call, {peer}, {CHAINS} chains", value=min(theirs), unit="ms"),
                Finding(what=f"{ours} / {peer}", value=ratio, unit="x", bar=bar),
            ]
    return found


def _commands(model: Path, port: str, replies: Path) -> tuple[dict[str, list[str | Path]], list[str]]:
    """The contestants' programs by name, and who is missing."""
    itself = [sys.executable, "-m", "benchmarks.orchestration"]
    commands: dict[str, list[str | Path]] = {
        "ours": [*itself, "http", model, port],
        "ours without HTTP": [*itself, "inside", model, port],
    }
    missing = []
    for name, peer, program, arguments in (
        ("TRL's asynchronous worker", "trl", "trl_worker.py", [model, port]),
        ("verifiers", "verifiers", "verifiers_rollout.py", [model, port]),
        ("verl's agent loop without HTTP", "verl", "verl_loop.py", [model, replies]),
    ):
        try:
            commands[name] = [peer_python(peer), PROGRAMS / program, *arguments]
        except NoPeerError as error:
            missing.append(str(error))
    return commands, missing


def _turn(asked: Contestant, chains: int, server: _Server) -> dict[str, float]:
    """CPU and wall seconds, and calls, which are counted by whoever answered them."""
    before = server.answered()
    spent = asked.ask(str(chains), seconds=_TURN_SECONDS)
    calls = server.answered() - before or spent["calls"]
    if not calls == spent["calls"] == chains * CALLS_PER_CHAIN:
        raise RuntimeError(f"{asked.name} made {calls} calls, and says {spent['calls']}, for {chains} chains")
    return spent


def _model(folder: Path) -> Path:
    """The small model's configuration and tokenizer, as all contestants can read it.

    TRL must know its chat template by heart, and verifiers' renderer wants tokens for reasoning, and no unknown one.
    """
    from transformers import AutoConfig, AutoTokenizer

    small = ensure_tiny(TinyModelConfig()).path
    tokenizer = AutoTokenizer.from_pretrained(small)
    try:
        template = peer_site_packages("trl") / "trl" / "chat_templates" / "qwen2_5.jinja"
        tokenizer.chat_template = template.read_text()
    except NoPeerError:
        pass  # its own will do for those who are there
    tokenizer.unk_token = None
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(folder)
    AutoConfig.from_pretrained(small).save_pretrained(folder)
    return folder


class _Server:
    """The token server, from outside."""

    def __init__(self, port: str) -> None:
        self.port = port

    def answered(self) -> int:
        """How many completions it has given."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/answered", timeout=60) as answer:
            return json.load(answer)["answered"]


@contextmanager
def _server(model: Path) -> Iterator[_Server]:
    command = [sys.executable, "-m", "benchmarks.token_server", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield _Server(process.stdout.readline().strip())
        finally:
            process.kill()


def _answer_turns(how: str, model: Path, port: str) -> None:
    """This module as a contestant: `http` or `inside`."""
    from benchmarks.peers import turns

    agent = build_agent(HFAgentConfig(max_turns=CALLS_PER_CHAIN), model)
    immediate = _Immediate(Replies(model).ids)

    async def rollouts(chains: int) -> int:
        if how == "inside":
            return await _collect(agent, immediate, chains)
        config = OpenAIConfig(
            base_url=f"http://127.0.0.1:{port}/v1",
            tokens="ids",
            max_connections=8192,
            connect_timeout_seconds=_TURN_SECONDS,  # a call that is tried again is no call more
        )
        engine = OpenAIEngine(config, model="policy", format=agent.chat)
        try:
            return await _collect(agent, engine, chains)
        finally:
            await engine.close()

    asyncio.run(turns.turns(rollouts))


class _Immediate:
    """A `Generate` that has its replies ready."""

    def __init__(self, replies: Sequence[Sequence[int]]) -> None:
        self._turns = [
            Generation(token_ids=list(ids), logprobs=[-0.5] * len(ids), finish=FinishReason.STOP, policy_version=0)
            for ids in replies
        ]

    async def generate(self, request: GenerationRequest) -> Generation:
        return self._turns[int(request.request_id.rpartition("/")[2])]


class _Counted:
    """A `Generate` that knows how often it was asked."""

    def __init__(self, generate: Generate) -> None:
        self.calls = 0
        self._generate = generate

    async def generate(self, request: GenerationRequest) -> Generation:
        self.calls += 1
        return await self._generate.generate(request)


async def _collect(agent: Agent, generate: Generate, chains: int) -> int:
    """How many model calls the chains made."""
    counted = _Counted(generate)
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
            counted,
            problems,
            store,
            config=RolloutConfig(chains=8, max_concurrency=chains),
            seeds=RolloutSeeds(run_seed=0, step=0),
        )
    if collected.progress.failures:
        raise RuntimeError(f"chains failed: {collected.progress}")
    return counted.calls


if __name__ == "__main__":
    match sys.argv[1:]:
        case [how, model, port]:
            _answer_turns(how, Path(model), port)
        case _:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            sys.exit(0 if main() else 1)
