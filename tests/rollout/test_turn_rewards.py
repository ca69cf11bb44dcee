"""What the environment gave for each turn is recorded with the turn that came back, and survives the disk."""

from dataclasses import replace

from agentfly_lib.store.shards import read_part, write_part
from agentfly_lib.tools import ToolContext, ToolResult, tool
from agentfly_lib.types import TrajectoryGroup


@tool
def play(context: ToolContext) -> ToolResult:
    """One move; the return so far is 0.25, 0.25 and 1."""
    moves = context.state["moves"] = context.state.get("moves", 0) + 1
    return ToolResult(observation=f"move {moves}", env_reward=(0.25, 0.25, 1.0)[moves - 1], finished=moves == 3)


async def test_the_rise_of_the_return_is_the_reward_of_the_turn(world, tmp_path):
    agent = replace(world.CharacterAgent(), tools={"play": play}, max_turns=5)
    trajectory = await world.run(
        world.scripted(*[world.call("play")] * 3), agent, limits=replace(world.LIMITS, max_turns=5)
    )
    assert trajectory.env_reward == 1.0
    turns = [(turn.sampled, turn.reward) for segment in trajectory.segments for turn in segment.turns]
    assert turns == [(True, None), (False, 0.25), (True, None), (False, 0.0), (True, None), (False, 0.75)]
    group = TrajectoryGroup(id="g", problem=world.problem(), trajectories=(trajectory,))
    write_part(tmp_path / "part-00000.arrow", [group], step=0)
    (stored,) = read_part(tmp_path / "part-00000.arrow")
    assert stored.trajectories[0].segments == trajectory.segments


async def test_it_is_recorded_where_a_new_segment_begins_too(world):
    agent = replace(world.CharacterAgent(chat=world.CharacterChat(rewrites=True)), tools={"play": play}, max_turns=5)
    trajectory = await world.run(
        world.scripted(*[world.call("play")] * 3), agent, limits=replace(world.LIMITS, max_turns=5)
    )
    assert len(trajectory.segments) == 3
    rewards = [turn.reward for segment in trajectory.segments for turn in segment.turns if not turn.sampled]
    assert rewards == [0.25, 0.0, 0.75]


async def test_without_an_environment_there_is_none(world):
    trajectory = await world.run(world.scripted(world.call("double", '{"number": 2}'), "4"))
    assert {turn.reward for segment in trajectory.segments for turn in segment.turns} == {None}
