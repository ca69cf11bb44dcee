"""The agent of one's own that `docs/agents.md` shows: short, and trained by the path that every recipe takes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from agentfly_lib.agents import build_agent
from agentfly_lib.configs import AlgorithmConfig, RolloutConfig, load_config
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.preflight import check_run
from agentfly_lib.rewards import score_groups
from agentfly_lib.rollout import RolloutSeeds, collect
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.store.shards import read_part
from agentfly_lib.training.samples import build_samples
from agentfly_lib.types import Outcome, Problem

REPOSITORY = Path(__file__).resolve().parents[2]
CUSTOM = ['agent.type="custom"', 'agent.name="arrow:ArrowAgent"']


@pytest.fixture
def arrow(tmp_path, monkeypatch) -> str:
    """The page's class as a module."""
    page = (REPOSITORY / "docs" / "agents.md").read_text()
    (source,) = re.findall(r"^```python\n((?:(?!^```).)*?class ArrowAgent.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "arrow.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return source


def test_it_is_short(arrow):
    assert len(arrow.splitlines()) < 30


async def test_a_recipe_that_names_it_collects_scores_and_trains(arrow, model_path, tmp_path, assert_token_exact):
    config = load_config(REPOSITORY / "recipes" / "ci.toml", CUSTOM)
    check_run(config)
    agent = build_agent(config.agent, model_path)
    problem = Problem(id="p", messages=({"role": "user", "content": "What is 12 * 7?"},), columns={"answer": "84"})
    replies = {"0": ["Let me see.\n-> 12 * 7", "It is \\boxed{84}."], "1": ["-> 12 *", "It is \\boxed{83}."]}
    engine = ScriptedGenerate(
        lambda request: replies[request.request_id.split("/")[1]][int(request.request_id.split("/")[2])],
        format=agent.chat,
    )
    store = RolloutStore.open(StepDirectory(tmp_path / "step"), step=0, policy_version=0, group_ids=["0-0"], chains=2)
    await collect(
        agent,
        engine,
        [("0-0", problem)],
        store,
        config=RolloutConfig(chains=2, flush_seconds=0.001),
        seeds=RolloutSeeds(run_seed=0, step=0),
    )
    (part,) = store.manifest.parts
    groups = read_part(StepDirectory(tmp_path / "step").rollouts / part.name, part)
    right, wrong = groups[0].trajectories
    assert [message["content"] for message in right.messages] == [replies["0"][0], "84", replies["0"][1]]
    assert wrong.messages[1]["content"].startswith("Error")
    assert_token_exact(right, [request for request in engine.requests if request.request_id.startswith("0-0/0")])
    scores = await score_groups(agent.reward, groups, timeout=60, max_concurrency=2, retries=0)
    assert [(score.outcome, score.reward) for score in scores] == [(Outcome.SCORED, 1.0), (Outcome.SCORED, 0.0)]
    scored = [_with_rewards(groups[0], [score.reward for score in scores])]
    built = build_samples(scored, AlgorithmConfig())
    samples, report = built.samples, built.report
    assert report.loss_tokens == right.num_sampled + wrong.num_sampled
    assert [float(sample.advantages.max()) > 0 for sample in samples] == [True, False]


def test_one_that_is_not_there_is_found_before_anything_starts(arrow):
    config = load_config(REPOSITORY / "recipes" / "ci.toml", [CUSTOM[0], 'agent.name="arrow:ArowAgent"'])
    with pytest.raises(ConfigError, match="did you mean ArrowAgent"):
        check_run(config)


def _with_rewards(group, rewards):
    trajectories = tuple(
        dataclasses.replace(trajectory, reward=reward)
        for trajectory, reward in zip(group.trajectories, rewards, strict=True)
    )
    return dataclasses.replace(group, trajectories=trajectories)
