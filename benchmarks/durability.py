"""What durability costs: a demo step with everything on, against a bare loop that keeps nothing.

The bare loop is what one would write by hand for the same algorithm: problems, chains, rewards, update and new weights
in one process, one after the other, by the same agent, engine and learner. It has no shards, manifests, checksums,
Prefect, MLflow or Ray, and cannot be resumed. Both collect the same problems with the same seeds, so their first step
samples the same tokens. They take turns, each in processes of its own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.engine import vllm_engine
from benchmarks.overhead import RECIPE, STEPS, WARM_UP, demo_steps
from benchmarks.peer_environments import measure
from benchmarks.report import Finding, show

__all__ = ["main"]

TURNS = 2


def main() -> bool:
    """Runs it; True if the bar is met."""
    found: dict[str, list[dict[str, list[float]]]] = {"bare": [], "whole": []}
    for _ in range(TURNS):
        found["bare"].append(measure([sys.executable, "-m", "benchmarks.durability", "bare"]))
        found["whole"].append(_whole())
    first = {each["tokens"][0] for runs in found.values() for each in runs}
    if len(first) != 1:
        raise RuntimeError(f"both must sample the same tokens in their first step, and sampled {sorted(first)}")

    def best(name: str, value: Callable[[dict[str, list[float]]], float]) -> float:
        return min(value(run) for run in found[name])

    # Weights drift apart by rounding, and with them the lengths of later replies: seconds a token, of the same tokens.
    seconds = {name: best(name, lambda run: sum(run["seconds"]) / sum(run["tokens"][WARM_UP:])) for name in found}
    steps = {name: best(name, lambda run: statistics.median(run["seconds"])) for name in found}
    findings = [
        Finding(what="step, everything on / bare loop", value=seconds["whole"] / seconds["bare"], unit="x", bar=1.10),
        Finding(what="step, bare loop, median", value=steps["bare"], unit="s"),
        Finding(what="step, everything on, median", value=steps["whole"], unit="s"),
    ]
    notes = f"wall seconds for each sampled token of {STEPS - WARM_UP} steps of {RECIPE}, best of {TURNS}, in turn"
    return show("durability", findings, notes=notes)


def _whole() -> dict[str, list[float]]:
    steps = demo_steps()
    return {
        "seconds": [step["time/step/seconds"] for step in steps[WARM_UP:]],
        "tokens": [step["rollout/sampled_tokens/sum"] for step in steps],
    }


async def _bare(folder: Path) -> dict[str, list[float]]:
    import torch

    from agentfly_lib.agents.build import build_agent
    from agentfly_lib.configs import load_config
    from agentfly_lib.data.order import problems_of_step
    from agentfly_lib.data.prepare import load_problems, prepare_dataset
    from agentfly_lib.inference.settings import EngineSettings
    from agentfly_lib.models.resolve import resolve_model
    from agentfly_lib.pipeline.problems import group_id
    from agentfly_lib.rewards.scoring import score_groups, with_rewards
    from agentfly_lib.rollout import ChainLimits, RolloutSeeds, run_chain
    from agentfly_lib.rollout.prompts import FirstPrompts
    from agentfly_lib.training.learner import LearnerRank
    from agentfly_lib.types import Canary, Problem, Trajectory, TrajectoryGroup

    config = load_config(RECIPE, [f"run.steps={STEPS}"])
    rollout, model = config.rollout, resolve_model(config.model)
    settings = EngineSettings(
        inference=config.inference, model_path=model.path, context_length=rollout.context_length, device="cpu"
    )
    engine, learner = vllm_engine(settings), LearnerRank()
    torch.set_num_threads(1)
    dataset = prepare_dataset(config.data, folder / "datasets")
    train = load_problems(dataset, "train")
    agent, limits = (
        build_agent(config.agent, model.path),
        ChainLimits.from_config(rollout, max_turns=config.agent.max_turns),
    )
    learner.setup(rank=0, world=1, address="127.0.0.1", port=0, config=config, model=model)
    await engine.start()

    async def chain(free: asyncio.Semaphore, name: str, problem: Problem, number: int, step: int) -> Trajectory:
        index = int(name.rpartition("-")[2])
        seeds = RolloutSeeds(run_seed=config.run.seed, step=step)
        async with free:
            return await run_chain(
                agent,
                engine,
                problem,
                group_id=name,
                chain=number,
                limits=limits,
                sampling=rollout.sampling,
                seed_of_turn=lambda turn: seeds.turn(index, number, turn),
                prompts=prompts,
            )

    seconds: list[float] = []
    tokens: list[float] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        weights = Path(shared) / "policy.safetensors"
        for step in range(STEPS):
            began = time.perf_counter()
            rows = problems_of_step(dataset.train_rows, rollout.problems_per_step, step, config.run.seed)
            asked = [(group_id(step, index), train[row]) for index, row in enumerate(rows)]
            free, prompts = asyncio.Semaphore(rollout.max_concurrency), FirstPrompts(agent)
            made = await asyncio.gather(
                *(
                    chain(free, name, problem, number, step)
                    for name, problem in asked
                    for number in range(rollout.chains)
                )
            )
            groups = [
                TrajectoryGroup(
                    id=name, problem=problem, trajectories=tuple(made[place * rollout.chains :][: rollout.chains])
                )
                for place, (name, problem) in enumerate(asked)
            ]
            scores = await score_groups(
                agent.reward, groups, timeout=30, max_concurrency=config.agent.reward.max_concurrency, retries=0
            )
            groups = with_rewards(groups, scores)
            learner.update_from(groups, step)
            logprobs = learner.export_weights(weights, step + 1)
            canary = Canary(token_ids=tuple(learner.canary_token_ids), logprobs=tuple(logprobs))
            await engine.load_weights(weights, step + 1, canary)
            seconds.append(time.perf_counter() - began)
            tokens.append(sum(each.num_sampled for each in made))
    await engine.close()
    learner.close()
    return {"seconds": seconds[WARM_UP:], "tokens": tokens}


if __name__ == "__main__":
    if sys.argv[1:] == ["bare"]:
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps(asyncio.run(_bare(Path(name)))))
    else:
        sys.exit(0 if main() else 1)
