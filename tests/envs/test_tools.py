"""An environment's actions as tools of an agent, in one chain and in a recipe."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from agentfly_lib.agents.agent import tools_of
from agentfly_lib.configs import HFAgentConfig, RunConfig, load_config
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import ConfigError, EnvironmentFailure, InfrastructureError
from agentfly_lib.preflight import check_run
from agentfly_lib.tools import ToolCall, ToolContext, execute_calls
from agentfly_lib.tools.environment import environment_tools
from agentfly_lib.types import Problem

ANT = Problem(id="ant", messages=(), columns={"word": "ant", "first_observation": "calm ant"})


class Player:
    """Calls the tools of one trajectory."""

    def __init__(self, spec, problem: Problem = ANT) -> None:
        self.tools = {tool.name: tool for tool in environment_tools(spec)}
        self.context = ToolContext(trajectory_id="0/0", group_id="0", problem=problem)

    async def turn(self, *calls: tuple[str, dict]):
        made = [ToolCall(id=str(n), name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls)]
        return await execute_calls(made, self.tools, self.context, default_timeout=30, max_chars=4096)

    async def __aenter__(self) -> Player:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.context.resources.aclose()


def test_the_model_reads_an_actions_own_signature(odd) -> None:
    do, jump = environment_tools(environment_spec(odd.THREAD))
    assert (do.name, do.description) == ("do", "Do something.")
    assert do.parameters == {
        "type": "object",
        "properties": {
            "what": {"type": "string", "description": "A verb."},
            "times": {"type": "integer", "default": 1, "description": "How often."},
        },
        "required": ["what"],
        "additionalProperties": False,
    }
    assert (jump.name, jump.description) == ("jump", "Jump somewhere.")
    assert jump.parameters["required"] == ["to-where"]
    assert do.timeout > odd.THREAD.step_seconds


async def test_calls_act_in_the_trajectorys_own_episode(odd) -> None:
    async with Player(environment_spec(odd.THREAD)) as player:
        first, second = await player.turn(("do", {"what": "dig", "times": 2}), ("jump", {"to-where": "Ulm"}))
        assert (first.observation, first.env_reward, first.finished) == ("1: dig 2", 0.25, False)
        assert (second.observation, second.env_reward) == ("2: jump Ulm", 0.5)
        (last,) = await player.turn(("do", {"what": "dig"}))
        assert (last.observation, last.env_reward, last.finished) == ("3: dig 1", 0.75, True)
        (late,) = await player.turn(("do", {"what": "dig"}))
        assert late.error == "The episode is over; nothing can be done any more."
        assert late.env_reward == 0.75
    async with Player(environment_spec(odd.THREAD)) as player:
        (first,) = await player.turn(("do", {"what": "dig"}))
        assert (first.observation, first.env_reward) == ("1: dig 1", 0.25)


async def test_a_call_that_is_wrong_is_no_step(odd) -> None:
    async with Player(environment_spec(odd.THREAD)) as player:
        refused, failed = await player.turn(("do", {"times": 2}), ("do", {"what": "dig", "times": 0}))
        assert refused.error == "do was not called: missing argument what, expected string."
        assert failed.error == "do failed: ValueError: times must be at least 1"
        assert refused.env_reward is failed.env_reward is None
        (wrong,) = await player.turn(("do", {"what": "wrong"}))
        assert (wrong.error, wrong.observation) == ("no such action", "That cannot be done.")
        (seen,) = await player.turn(("do", {"what": "picture"}))
        assert [base64.b64decode(image.rpartition(",")[2]) for image in seen.images] == [b"\x89PNG one", b"\x89PNG two"]


async def test_a_broken_game_is_a_failure_of_this_trajectory(odd) -> None:
    async with Player(environment_spec(odd.THREAD)) as player:
        with pytest.raises(EnvironmentFailure, match="it broke"):
            await player.turn(("do", {"what": "raise"}))
    async with Player(environment_spec(odd.THREAD, {"start_code": 1})) as player:
        with pytest.raises(InfrastructureError, match="failed to start"):
            await player.turn(("do", {"what": "dig"}))


async def test_another_trajectory_in_a_process_begins_anew(odd) -> None:
    spec = environment_spec(odd.KIND)
    async with Player(spec) as player:
        (first,) = await player.turn(("do", {"what": "dig"}))
        assert first.env_reward == 0.25
        with pytest.raises(EnvironmentFailure, match="ended with exit code 7"):
            await player.turn(("do", {"what": "leave"}))


def test_an_environment_gives_the_agent_tools_and_reward_and_leaves_room_for_more() -> None:
    config = HFAgentConfig.model_validate({"environment": {"name": "odd_environments:THREAD"}})
    assert (config.tools, config.reward.name) == ((), "environment")
    config = HFAgentConfig.model_validate(
        {"environment": {"name": "x:Y"}, "tools": ["finish"], "reward": {"name": "tool_use"}}
    )
    assert (config.tools, config.reward.name) == (("finish",), "tool_use")
    assert HFAgentConfig().tools == ("calculator",)


def test_actions_and_tools_may_not_have_one_name(odd) -> None:
    config = HFAgentConfig.model_validate({"environment": {"name": "odd_environments:THREAD"}, "tools": ["finish"]})
    assert list(tools_of(config)) == ["do", "jump", "finish"]
    twice = {"environment": {"name": "odd_environments:THREAD"}, "tools": ["finish", "finish"]}
    with pytest.raises(ConfigError, match="two tools are called 'finish'"):
        tools_of(HFAgentConfig.model_validate(twice))


RECIPE = """
[run]
name = "odd"
[model]
type = "tiny"
[data]
type = "environment"
train_problems = 16
[agent.environment]
name = "odd_environments:THREAD"
settings = { mood = "merry" }
"""


def test_a_recipe_names_the_environment_once(odd, tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text(RECIPE)
    config = load_config(tmp_path / "odd.toml")
    assert (config.data.name, config.data.settings) == ("odd_environments:THREAD", {"mood": "merry"})
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    check_run(config)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('agent.environment.name="odd_environments:NOPE"', "odd_environments has no NOPE"),
        ('agent.environment.settings={modo="x"}', "unknown key agent.environment.settings.modo: did you mean mood"),
        (
            'data={type="environment",name="odd_environments:KIND",settings={modo="x"}}',
            "unknown key data.settings.modo",
        ),
        ("agent.environment.cap=1", "warm=2 is more than cap=1"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_at_once(odd, tmp_path: Path, override: str, message: str) -> None:
    (tmp_path / "odd.toml").write_text(RECIPE)
    with pytest.raises(ConfigError, match=message):
        check_run(load_config(tmp_path / "odd.toml", [override]))
