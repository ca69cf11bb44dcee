"""Whole trajectories in the shop and over the search index, by an agent whose replies are written down."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from agentfly_lib.agents import HFAgent, SearchAgent
from agentfly_lib.chat import ChatFormat
from agentfly_lib.envs.search import KIND as SEARCH
from agentfly_lib.envs.search import SearchSettings, shared_service
from agentfly_lib.envs.search.bm25 import PACKAGES
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.envs.webshop import KIND as SHOP
from agentfly_lib.envs.webshop import WebShopSettings
from agentfly_lib.envs.webshop.shop import open_shop
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.models.tokenizer import build_tokenizer
from agentfly_lib.tools.environment import environment_tools
from agentfly_lib.tools.web_search import web_search
from agentfly_lib.types import StopReason

for package in (*PACKAGES, "rapidfuzz"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_tokenizer(["Find me a black boot with color: black, and size: small"] * 20).save_pretrained(path)
    return path


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_each_trajectory_is_paid_for_what_it_bought_itself(model_path):
    """Of four chains a problem, one buys what is wanted, one forgets the options, one buys nothing, one never acts."""
    goals = open_shop(WebShopSettings()).goals
    rows = list(SHOP.problems(WebShopSettings(), "train"))[:4]
    chat = ChatFormat.from_pretrained(model_path)
    started: dict[str, int] = {}

    def buyer(request: GenerationRequest) -> str:
        prompt = chat.decode(request.token_ids)
        (row,) = (row for row in rows if row["question"] in prompt)
        goal, said = goals[row["goal"]], prompt.count("<tool_response>")
        if said == 0:
            chain = started[row["id"]] = started.get(row["id"], -1) + 1
            words = f"{goal.product.title.split(',')[0]} {('all', 'no', 'nothing')[chain]}" if chain < 3 else ""
            return call("search", keywords=words) if words else "I would rather not."
        options = [value for _, value in goal.options]
        kind = re.findall(r'"keywords": "[^"]* (all|no|nothing)"', prompt)[-1]
        if kind == "nothing":
            return "Too expensive."
        steps = [goal.product.asin, *(options if kind == "all" else []), "Buy Now"]
        return call("click", element=steps[said - 1])

    agent = HFAgent(
        model_path,
        environment_tools(environment_spec("webshop")),
        reward_fn="environment",
        backend=ScriptedGenerate(buyer, format=chat),
    )
    async with agent:
        result = await agent.run(rows, max_turns=8, num_chains=4, generation_config={"max_tokens": 200})
    assert len(result.rewards) == 16
    for first, row in zip(range(0, 16, 4), rows, strict=True):
        goal = goals[row["goal"]]
        rewards = sorted(-1.0 if value is None else value for value in result.rewards[first : first + 4])
        share = (len(goal.attributes) + 1) / (len(goal.attributes) + len(goal.options) + 1)
        assert rewards == pytest.approx([-1.0, 0.0, share, 1.0])  # who never acted has no reward


async def test_searches_in_tags_go_to_the_index_service(model_path):
    rows = [row for row in SEARCH.problems(SearchSettings(), "train") if "born" in row["id"]][:6]
    chat = ChatFormat.from_pretrained(model_path)

    def reader(request: GenerationRequest) -> str:
        prompt = chat.decode(request.token_ids)
        (row,) = (row for row in rows if row["question"] in prompt)
        if (born := re.search(r"<information>.*, born in (\d{4}) in", prompt, re.DOTALL)) is not None:
            return f"<answer>{born[1]}</answer>"
        if (founder := re.search(r"It was founded by (\w+ \w+) in", prompt)) is not None:
            return f"<search>{founder[1]}</search>"
        return f"<search>{row['question']}</search>"

    tool = web_search.with_settings({"provider": {"type": "index"}, "results": 1})
    agent = SearchAgent(
        model_path, [tool], reward_fn="exact_match", backend=ScriptedGenerate(reader, format=chat), max_turns=4
    )
    async with agent:
        result = await agent.run(rows, num_chains=2, max_turns=4, generation_config={"max_tokens": 200})
    assert result.rewards == [1.0] * 12
    assert all(trajectory.stop is StopReason.FINISHED for trajectory in result.trajectories)


async def test_the_answer_ends_the_episode_of_the_environment(model_path):
    rows = [row for row in SEARCH.problems(SearchSettings(), "train") if "river" in row["id"]][:3]
    chat = ChatFormat.from_pretrained(model_path)

    def reader(request: GenerationRequest) -> str:
        prompt = chat.decode(request.token_ids)
        (row,) = (row for row in rows if row["question"] in prompt)
        river = re.search(r"is a town on the river (\w+)\.", prompt)
        return call("answer", answer=river[1]) if river else call("search", query=row["question"])

    agent = HFAgent(
        model_path,
        environment_tools(environment_spec("search")),
        reward_fn="environment",
        backend=ScriptedGenerate(reader, format=chat),
    )
    async with agent:
        result = await agent.run(rows, num_chains=2, max_turns=4, generation_config={"max_tokens": 200})
    assert result.rewards == [1.0] * 6
    assert [trajectory.num_turns for trajectory in result.trajectories] == [2] * 6
    shared_service(SearchSettings().index).close()
