"""A rollout with tools, against TRL's GRPO trainer: the same model, the same tokens, the same tool delays.

8 problems x 8 chains x 3 tool calls, 20,000 sampled tokens of a policy that is scripted in its weights
(`scripted_model`), so that both do identical work, on one thread each. Ours is a collection as in a run: vLLM, chat
format, tools, shards. TRL generates with `transformers`, because its vLLM mode wants a GPU. So that nobody mistakes the
engine for the orchestration, ours is measured on `transformers` too. With tool delays wall time decides, without them
processor time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_environments import PROGRAMS, NoPeerError, measure, peer_python, peer_site_packages
from benchmarks.report import Finding, show
from benchmarks.timing import cpu_seconds

__all__ = ["CALLS", "TOOL_CALLS", "best", "in_turn", "main", "scripted_model"]

PROBLEMS = 8
CHAINS = 8
CALLS = 3
TOOL_CALLS = PROBLEMS * CHAINS * CALLS
REPEATS = 3
PEER = "trl"


def main() -> bool:
    """Runs it; True if the bars are met. False without the peer."""
    long_tailed = np.random.default_rng(0).lognormal(np.log(0.2), 1.2, TOOL_CALLS).tolist()
    try:
        with scripted_model() as model:
            none, tailed = in_turn(model, [0.0] * TOOL_CALLS), in_turn(model, long_tailed)
    except NoPeerError as error:
        print(error)
        return False
    findings = [
        Finding(what="wall, long-tailed tools: TRL / ours", value=_ratio(tailed, "wall"), unit="x", floor=8),
        Finding(what="CPU, no delay: TRL / ours", value=_ratio(none, "cpu"), unit="x", floor=3),
        Finding(
            what="wall, long-tailed tools: TRL / ours on transformers", value=_ratio(tailed, "wall", "alike"), unit="x"
        ),
        Finding(what="CPU, no delay: TRL / ours on transformers", value=_ratio(none, "cpu", "alike"), unit="x"),
        Finding(what="wall, no delay: TRL / ours", value=_ratio(none, "wall"), unit="x"),
        Finding(what="wall, long-tailed tools, ours", value=best(tailed["ours"], "wall"), unit="s"),
        Finding(what="CPU, no delay, ours", value=best(none["ours"], "cpu"), unit="s"),
        Finding(what="CPU, no delay, TRL", value=best(none["peer"], "cpu"), unit="s"),
    ]
    return show(
        "rollout_vs_trl",
        findings,
        notes=f"trl 1.16.0; best of {REPEATS}, in turn, each in a process of its own, after a warm-up",
    )


@contextmanager
def scripted_model() -> Iterator[Path]:
    """The policy of both, with the peer's chat template. Raises `NoPeerError`."""
    template = (peer_site_packages(PEER) / "trl" / "chat_templates" / "qwen2_5.jinja").read_text()
    with tempfile.TemporaryDirectory() as folder:
        model, written = Path(folder) / "model", Path(folder) / "template.json"
        written.write_text(json.dumps(template))
        measure([sys.executable, "-m", "benchmarks.rollout_vs_trl", "model", model, written])
        yield model


def in_turn(model: Path, delays: Sequence[float], *, repeats: int = REPEATS) -> dict[str, list[dict[str, float]]]:
    """Seconds (`wall`, `cpu`) of every run of each contestant: `ours` (vLLM), `alike` (transformers), `peer`."""
    written = model.parent / "delays.json"
    written.write_text(json.dumps(delays))
    numbers = [str(PROBLEMS), str(CHAINS), str(CALLS)]
    commands = {
        "ours": [sys.executable, "-m", "benchmarks.rollout_vs_trl", "vllm", model, written],
        "alike": [sys.executable, "-m", "benchmarks.rollout_vs_trl", "transformers", model, written],
        "peer": [peer_python(PEER), PROGRAMS / "trl_rollout.py", model, *numbers, written],
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            found[name].append(measure(command))
    work = {(each["sampled"], each["waited"]) for runs in found.values() for each in runs}
    if len(work) != 1:
        raise RuntimeError(f"all must do the same work, and did {found}")
    return found


def best(runs: list[dict[str, float]], what: str) -> float:
    """The fewest seconds of a contestant."""
    return min(each[what] for each in runs)


def _ratio(found: dict[str, list[dict[str, float]]], what: str, ours: str = "ours") -> float:
    return best(found["peer"], what) / best(found[ours], what)


def _make_model(model: Path, template: Path) -> None:
    from benchmarks.scripted_model import make_scripted_model

    make_scripted_model(model, chat_template=json.loads(template.read_text()))
    print(json.dumps("made"))


async def _ours(kind: str, model: Path, delays: list[float]) -> dict[str, float]:
    """Seconds of one collection, engine and shards included; its start is not, nor is that of the peer's trainer."""
    from agentfly_lib.agents.build import build_agent
    from agentfly_lib.configs import HFAgentConfig, RolloutConfig
    from agentfly_lib.rollout import Collected, RolloutSeeds, collect
    from agentfly_lib.store.layout import StepDirectory
    from agentfly_lib.store.manifest import RolloutStore
    from agentfly_lib.tools import tool
    from agentfly_lib.types import Problem

    remaining = iter(delays)

    @tool(timeout=600)
    async def wait(kind: int) -> str:
        """Waits.

        Args:
            kind: Of waiting.
        """
        await asyncio.sleep(next(remaining))
        return "done"

    agent = build_agent(HFAgentConfig(max_turns=CALLS + 1), model, tools=[wait])
    engine = await _engine(kind, model)

    def problem(name: str) -> tuple[str, Problem]:
        return name, Problem(id=name, messages=({"role": "user", "content": f"Task {name}"},))

    problems = [problem(str(number)) for number in range(PROBLEMS)]

    async def collected(asked: list[tuple[str, Problem]], folder: Path) -> Collected:
        names = [name for name, _ in asked]
        store = RolloutStore.open(StepDirectory(folder), step=0, policy_version=0, group_ids=names, chains=CHAINS)
        rollout, seeds = RolloutConfig(chains=CHAINS), RolloutSeeds(run_seed=0, step=0)
        return await collect(agent, engine, asked, store, config=rollout, seeds=seeds)

    measured, remaining = remaining, iter([0.0] * (CHAINS * CALLS))
    with tempfile.TemporaryDirectory() as folder:  # a warm-up, whose tools answer at once
        await collected([problem("warm-up")], Path(folder))
    remaining = measured
    with tempfile.TemporaryDirectory() as folder:
        began, used = time.perf_counter(), cpu_seconds()
        found = await collected(problems, Path(folder))
        wall, used = time.perf_counter() - began, cpu_seconds() - used
    await engine.close()
    return {
        "wall": wall,
        "cpu": used,
        "sampled": found.progress.sampled_tokens,
        "waited": len(delays) - len(list(remaining)),
    }


async def _engine(kind: str, model: Path) -> Any:
    import torch

    torch.set_num_threads(1)
    if kind == "transformers":
        from agentfly_lib.configs import TransformersConfig
        from agentfly_lib.inference.transformers import TransformersEngine

        return TransformersEngine(model, TransformersConfig(max_sequences=PROBLEMS * CHAINS), context_length=2048)
    from agentfly_lib.configs import InferenceConfig
    from agentfly_lib.inference.settings import EngineSettings
    from benchmarks.engine import vllm_engine

    settings = EngineSettings(
        inference=InferenceConfig(max_sequences=PROBLEMS * CHAINS), model_path=model, context_length=2048, device="cpu"
    )
    engine = vllm_engine(settings)
    await engine.start()
    return engine


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["model", model, template]:
            _make_model(Path(model), Path(template))
        case ["vllm" | "transformers" as kind, model, delays]:
            print(json.dumps(asyncio.run(_ours(kind, Path(model), json.loads(Path(delays).read_text())))))
        case _:
            sys.exit(0 if main() else 1)
