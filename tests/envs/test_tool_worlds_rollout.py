"""Whole trajectories in BFCL, MiniWoB and a repository, each in a process of its own, by an agent that is scripted."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from agentfly_lib.agents import HFAgent
from agentfly_lib.chat import ChatFormat
from agentfly_lib.data.environment import environment_problems
from agentfly_lib.envs.bfcl.world import read_call
from agentfly_lib.envs.spec import EnvironmentSpec, environment_spec
from agentfly_lib.envs.swe.sample import sample_problems
from agentfly_lib.errors import UserError
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.models.tokenizer import build_tokenizer
from agentfly_lib.tools.environment import environment_tools

Player = Callable[[dict[str, Any], str, int], str]
"""From a row, what the policy sees, and how many results it has seen, to its reply."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_tokenizer(["Do what the page asks for: click the button at x=120, y=96."] * 20).save_pretrained(path)
    return path


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def play(model_path: Path, spec: EnvironmentSpec, count: int, player: Player) -> tuple[list[dict[str, Any]], Any]:
    """Two chains for each of the first problems: the first one plays, the other says that it would rather not."""
    try:
        spec.check()
    except UserError as error:
        pytest.skip(str(error))
    rows = []
    for sourced in await asyncio.to_thread(environment_problems, spec, "train", count):
        problem = sourced.problem
        rows.append({"question": problem.messages[-1]["content"], "id": problem.id, **problem.columns})
    chat = ChatFormat.from_pretrained(model_path)

    def reply(request: GenerationRequest) -> str:
        prompt = chat.decode(request.token_ids)
        (row,) = (row for row in rows if row["question"] in prompt)
        if request.request_id.split("/")[-2] == "1":
            return "I would rather not."
        return player(row, prompt, prompt.count("<tool_response>"))

    agent = HFAgent(
        model_path, environment_tools(spec), reward_fn="environment", backend=ScriptedGenerate(reply, format=chat)
    )
    async with agent:
        result = await agent.run(rows, max_turns=40, num_chains=2, generation_config={"max_tokens": 400})
    assert not [trajectory.failure for trajectory in result.trajectories if trajectory.failure]
    return rows, result


async def test_bfcl(model_path: Path) -> None:
    spec = environment_spec("bfcl", {"systems": ["GorillaFileSystem"]}, cap=2)

    def player(row: dict[str, Any], prompt: str, seen: int) -> str:
        replies = []
        for turn in row["ground_truth"]:
            replies += [call(each.name, **each.arguments) for each in map(read_call, turn)] + [call("done")]
        return replies[seen]

    rows, result = await play(model_path, spec, 3, player)
    assert result.rewards == [pytest.approx(1.0), None] * 3
    said = "\n".join(str(message["content"]) for message in result.trajectories[0].messages)
    assert all(f"The user says: {request}" in said for request in rows[0]["requests"][1:])


async def test_miniwob(model_path: Path) -> None:
    settings = {"observation": "text", "pages": ["click-test", "enter-text"], "actions": ["click", "type"]}
    spec = environment_spec("miniwob", settings, cap=1)

    def player(row: dict[str, Any], prompt: str, seen: int) -> str:
        def press(name: str) -> str:
            x, y = re.findall(rf"#{name} .*at x=(\d+), y=(\d+)", prompt)[-1]
            return call("click", x=int(x), y=int(y))

        if row["page"] == "click-test":
            return press("subbtn")
        words = re.findall(r'The page asks: Enter "(.*?)"', prompt)[0]
        return [press("tt"), call("type", text=words), press("subbtn")][seen]

    _, result = await play(model_path, spec, 2, player)
    assert result.rewards == [1.0, None, 1.0, None]


async def test_swe(model_path: Path) -> None:
    spec = environment_spec("swe", cap=2)
    samples = {f"sample-{sample.name}": sample for sample in sample_problems("train")}

    def player(row: dict[str, Any], prompt: str, seen: int) -> str:
        sample = samples[row["id"]]
        path = f"{sample.name}.py"
        broken = sample.code.replace(sample.right, sample.wrong)
        replies = [
            call("read_file", path=path),
            call("edit_file", path=path, old=broken, new=sample.code),
            call("submit"),
        ]
        return replies[seen]

    _, result = await play(model_path, spec, 2, player)
    assert result.rewards == [1.0, None] * 2
