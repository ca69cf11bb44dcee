"""Every environment's small recipe, for real but for one thing: a model that knows none of the tools acts all the same.

The recipe's own data, agent, tools, resource pool, sampling, shards, rewards and learner do two steps. What the small
model writes is sampled and trained on as ever; `Acting` only reads a call of some tool into it, and `Brief` ends turns
that would not end. Then some trajectories
are played again, each in an environment that nobody has used before: their rewards must be the same, so they were given
by the right episode.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import itertools
import os
import random
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentfly_lib.agents.agent import environment_of
from agentfly_lib.agents.hf import HFAgent
from agentfly_lib.chat import ParsedReply, ToolCall
from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.data.order import problems_of_step
from agentfly_lib.data.prepare import load_problems, prepare_dataset
from agentfly_lib.inference.generate import Generation, GenerationRequest
from agentfly_lib.inference.transformers import TransformersEngine
from agentfly_lib.models.resolve import resolve_model
from agentfly_lib.preflight import check_context, check_run
from agentfly_lib.refs import ModelRef
from agentfly_lib.rewards.stage import score_step
from agentfly_lib.rollout import RolloutSeeds, collect
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.tools import ToolContext, execute_calls
from agentfly_lib.types import FailureKind, FinishReason, Problem, Trajectory

pytestmark = [pytest.mark.stack, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("AGENTFLY_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
RECIPES = sorted(path.stem.removesuffix("-smoke") for path in (REPOSITORY / "recipes").glob("*-smoke.toml"))
PACKAGES = {
    "alfworld": ("alfworld", "textworld"),
    "bfcl": ("bfcl_eval", "mpmath"),
    "chess": ("chess",),
    "miniwob": ("miniwob",),
    "reasoning_gym": ("reasoning_gym",),
    "scienceworld": ("scienceworld",),
    "search": ("bm25s", "Stemmer"),
    "swe": (),
    "textworld": ("textworld",),
    "webshop": ("bm25s", "Stemmer", "rapidfuzz"),
}
PROGRAMS = {"miniwob": ("chromium",), "scienceworld": ("java",), "swe": ("bwrap",)}
SMALLER = ["rollout.problems_per_step=2", "rollout.chains=2", "data.train_problems=2", "data.eval_problems=1"]
"""Some environments take seconds to begin an episode."""
OVERRIDES = {"alfworld": [f'agent.environment.settings.folder="{DATA / "alfworld"}"']}
TIMED = frozenset({"miniwob"})
"""Their rewards shrink with the seconds that an episode takes."""
ENOUGH = 3
TURN_TOKENS = 16


class Acting(HFAgent):
    """Reads a call of some tool into whatever the policy wrote: which one, and with what, follows from the text."""

    def parse(self, text: str) -> ParsedReply:
        draws = random.Random(text)
        tool = draws.choice(list(self.tools.values()))
        call = ToolCall(id="0", name=tool.name, arguments=_arguments(tool.parameters, text, draws))
        return ParsedReply(content=text, calls=(call,))


def _arguments(schema: Mapping[str, Any], text: str, draws: random.Random) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _value(properties.get(name, {}), text, draws) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any], text: str, draws: random.Random) -> Any:
    if schema.get("enum"):
        return draws.choice(schema["enum"])
    match schema.get("type"):
        case "integer" | "number":
            return draws.randint(0, 9)
        case "boolean":
            return draws.random() < 0.5
        case "array":
            return [_value(schema.get("items", {}), text, draws)]
        case "object":
            return _arguments(schema, text, draws)
        case _:
            return draws.choice([*text.split(), "look"])


class Brief:
    """An engine whose model always comes to an end: what it has written by then is its turn."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine

    async def generate(self, request: GenerationRequest) -> Generation:
        brief = dataclasses.replace(request, max_tokens=min(request.max_tokens, TURN_TOKENS))
        return dataclasses.replace(await self.engine.generate(brief), finish=FinishReason.STOP)


@dataclasses.dataclass
class Run:
    """One learner for all recipes, whose versions go on from one to the next."""

    learner: Any
    model: ModelRef
    folder: Path
    version: int = 0

    def engine(self, context_length: int) -> TransformersEngine:
        """One that serves the learner's weights."""
        weights = self.folder / "policy.safetensors"
        self.learner.export_weights(weights, self.version)

        def load() -> Any:
            from safetensors.torch import load_file
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(self.model.path, dtype="float32")
            model.load_state_dict(load_file(weights), strict=False)
            return model.eval()

        return TransformersEngine(self.model.path, context_length=context_length, load=load)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    from agentfly_lib.training.learner import LearnerRank

    config = load_config(REPOSITORY / "recipes" / "chess-smoke.toml")
    model = resolve_model(config.model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    learner = LearnerRank()
    learner.setup(rank=0, world=1, address="127.0.0.1", port=port, config=config, model=model)
    yield Run(learner, model, tmp_path_factory.mktemp("environments"))
    learner.close()


def recipe(name: str) -> RunConfig:
    """The recipe, or a skip that says what is not installed here."""
    for package in PACKAGES.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")
    for program in PROGRAMS.get(name, ()):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if name == "alfworld" and not (DATA / "alfworld").is_dir():
        pytest.skip(f"there are no games in {DATA / 'alfworld'}")
    config = load_config(REPOSITORY / "recipes" / f"{name}-smoke.toml", [*SMALLER, *OVERRIDES.get(name, ())])
    check_run(config)
    return config


@pytest.mark.parametrize("name", RECIPES)
async def test_two_steps_with_rewards_of_the_right_episodes(name: str, run: Run) -> None:
    config = recipe(name)
    check_context(config, run.model.path)
    dataset = await asyncio.to_thread(prepare_dataset, config.data, run.folder / "datasets")
    train = load_problems(dataset, "train")
    agent = Acting.from_config(config.agent, run.model.path)
    agent.reward.check_columns(dataset.columns)
    acted: list[tuple[Problem, Trajectory]] = []
    for step in range(config.run.steps):
        rows = problems_of_step(len(train), config.rollout.problems_per_step, step, config.run.seed)
        problems = [(f"{step:06d}-{index:05d}", train[row]) for index, row in enumerate(rows)]
        directory = StepDirectory(run.folder / f"{run.version:06d}")
        store = RolloutStore.open(
            directory,
            step=step,
            policy_version=run.version,
            group_ids=[identity for identity, _ in problems],
            chains=config.rollout.chains,
        )
        engine = run.engine(config.rollout.context_length)
        try:
            await collect(
                agent,
                Brief(engine),
                problems,
                store,
                config=config.rollout,
                seeds=RolloutSeeds(run_seed=config.run.seed, step=step),
            )
        finally:
            await engine.close()
        scored = await score_step(directory, agent.reward, config=config.agent.reward, follow_seconds=60)
        report = run.learner.update_from(scored.groups, run.version)
        run.version += 1
        assert report.policy_version == run.version
        trajectories = [(group.problem, each) for group in scored.groups for each in group.trajectories]
        assert len(trajectories) == config.rollout.problems_per_step * config.rollout.chains
        _check_failures(name, [each for _, each in trajectories])
        acted += [(problem, each) for problem, each in trajectories if each.env_reward is not None]
        idle = [each for _, each in trajectories if each.failure is None and not each.metrics["tool_calls"]]
        assert all(each.env_reward is None for each in idle)
    assert len(acted) >= ENOUGH, "hardly anybody has acted"
    for problem, trajectory in _spread(acted):
        again = await play_again(agent, config, problem, trajectory)
        if name in TIMED:
            assert (again > 0) == (trajectory.env_reward > 0), trajectory.id
        else:
            assert again == pytest.approx(trajectory.env_reward, abs=1e-6), trajectory.id


def _check_failures(name: str, trajectories: list[Trajectory]) -> None:
    failures = [each.failure for each in trajectories if each.failure is not None]
    blamed = [failure for failure in failures if failure.kind is not FailureKind.POLICY]
    assert not blamed, f"{name}: {blamed[0].where}: {blamed[0].message}"


def _spread(acted: list[tuple[Problem, Trajectory]]) -> list[tuple[Problem, Trajectory]]:
    """Those with the lowest and the highest reward."""
    ordered = sorted(acted, key=lambda each: each[1].env_reward or 0.0)
    return [ordered[0], ordered[-1]]


async def play_again(agent: Acting, config: RunConfig, problem: Problem, trajectory: Trajectory) -> float | None:
    """The reward of the same calls in an environment of its own."""
    context = ToolContext(trajectory_id="again/0", group_id="again", problem=problem)
    reward = None
    try:
        turns = [turn for segment in trajectory.segments for turn in segment.turns]
        for turn, after in itertools.pairwise(turns):
            if not turn.sampled or after.sampled:
                continue
            results = await execute_calls(
                agent.parse(turn.message["content"]).calls,
                agent.tools,
                context,
                default_timeout=config.agent.tool_timeout_seconds,
                max_chars=config.agent.max_tool_chars,
            )
            for result, seen in zip(results, [after], strict=True):
                reward = reward if result.env_reward is None else result.env_reward
                assert seen.message["role"] == "tool"
    finally:
        await context.resources.aclose()
    return reward


def test_the_recipes_name_the_environments_that_we_ship() -> None:
    for name in RECIPES:
        config = load_config(REPOSITORY / "recipes" / f"{name}-smoke.toml", OVERRIDES.get(name, ()))
        environment = environment_of(config.agent)
        assert environment is not None
        assert environment.kind.name == name
        assert config.data.type == "environment"


@pytest.mark.release
def test_a_recipe_as_it_is_typed(agentfly, root: Path) -> None:
    recipe("chess")
    command = agentfly("train", "recipes/chess-smoke.toml", "--set", f"run.root={root}")
    assert command.status == 0, command.output[-2000:] + command.errors[-4000:]
    ledger = agentfly("ledger", root / "chess-smoke")
    assert (ledger.status, "OFF" in ledger.output) == (0, False)
