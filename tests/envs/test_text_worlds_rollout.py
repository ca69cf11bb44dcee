"""Whole trajectories in ScienceWorld, ALFWorld and TextWorld, each in a process of its own, by a scripted agent."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from agentfly_lib.agents import HFAgent
from agentfly_lib.chat import ChatFormat
from agentfly_lib.data.environment import environment_problems
from agentfly_lib.envs.scienceworld import ScienceWorld
from agentfly_lib.envs.spec import EnvironmentSpec, environment_spec
from agentfly_lib.envs.textworld import TextWorld
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.models.tokenizer import build_tokenizer
from agentfly_lib.tools.environment import environment_tools
from tests.envs.solutions import scienceworld_solution

DATA = Path(os.environ.get("AGENTFLY_TEST_DATA", Path(__file__).parents[3] / "shared/data")) / "alfworld"


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make envs")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_tokenizer(
        ["You are in the middle of a room. Your task is to open the door to the kitchen."] * 20
    ).save_pretrained(path)
    return path


def call(action: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'do', 'arguments': {'action': action}})}\n</tool_call>"


async def play(model_path: Path, spec: EnvironmentSpec, rows: list[dict[str, Any]], solutions: list[list[str]]) -> Any:
    """Two chains a problem: one follows the solution, the other does nothing. Their rewards, sorted."""
    chat = ChatFormat.from_pretrained(model_path)
    idle: set[str] = set()

    def player(request: GenerationRequest) -> str:
        prompt = chat.decode(request.token_ids)
        said = prompt.count("<tool_response>")
        (solution,) = (s for row, s in zip(rows, solutions, strict=True) if row["question"] in prompt)
        (question,) = (row["question"] for row in rows if row["question"] in prompt)
        if said == 0 and question not in idle:
            idle.add(question)
            return "I would rather not."
        return call(solution[said]) if said < len(solution) else "I am done."

    agent = HFAgent(
        model_path,
        environment_tools(spec),
        reward_fn="environment",
        backend=ScriptedGenerate(player, format=chat),
    )
    async with agent:
        result = await agent.run(rows, max_turns=60, num_chains=2, generation_config={"max_tokens": 200})
    assert not [trajectory.failure for trajectory in result.trajectories if trajectory.failure]
    return sorted(-1.0 if value is None else value for value in result.rewards)


def read_rows(spec: EnvironmentSpec, count: int) -> list[dict[str, Any]]:
    """Problems as a dataset has them, with what a process showed that is not the one of the episode."""
    found = []
    for sourced in environment_problems(spec, "train", count):
        problem = sourced.problem
        found.append({"question": problem.messages[-1]["content"], "id": problem.id, **problem.columns})
    return found


async def test_scienceworld(model_path: Path) -> None:
    need("scienceworld")
    if shutil.which("java") is None:
        pytest.skip("there is no Java runtime on the PATH")
    spec = environment_spec("scienceworld", {"tasks": ["find-plant"]}, cap=1)
    rows = await in_thread(read_rows, spec, 1)
    assert rows[0]["question"].startswith("Your task is to find a(n) plant.")
    with closing(ScienceWorld(tasks=("find-plant",))) as world:
        solution = scienceworld_solution(world, rows[0])
    assert await play(model_path, spec, rows, [solution]) == [-1.0, pytest.approx(1.0)]


async def test_textworld(model_path: Path) -> None:
    need("textworld")
    spec = environment_spec("textworld", cap=2)
    rows = await in_thread(read_rows, spec, 2)
    solutions = []
    with closing(TextWorld()) as game:
        for row in rows:
            game.reset(row)
            solutions.append(game.walkthrough())
    assert await play(model_path, spec, rows, solutions) == [-1.0, -1.0, pytest.approx(1.0), pytest.approx(1.0)]


async def test_alfworld(model_path: Path, tmp_path: Path) -> None:
    need("alfworld")
    games = sorted(DATA.glob("*/*/game.tw-pddl"))
    if not games:
        pytest.skip(f"there are no ALFWorld games in {DATA}")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / games[0].parents[1].name).symlink_to(games[0].parents[1])
    spec = environment_spec("alfworld", {"folder": str(tmp_path)}, cap=1)
    rows = await in_thread(read_rows, spec, 1)
    solution = json.loads(games[0].read_text())["walkthrough"]
    assert await play(model_path, spec, rows, [solution]) == [-1.0, 1.0]


async def in_thread(work: Any, *arguments: Any) -> Any:
    """Preparing problems runs a loop of its own."""
    return await asyncio.to_thread(work, *arguments)
