"""What a run's report says went wrong, and that nothing in it is markup of a model's."""

from __future__ import annotations

import pytest

from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.types import Failure, FailureKind, StopReason
from agentfly_lib.viewer.summary import summary_markdown
from agentfly_lib.viewer.trouble import troubles, troubles_markdown
from tests.viewer.built_runs import group, trajectory, write_step


def failed(name: str, chain: int, where: str, message: str = "no answer", kind: FailureKind = FailureKind.TOOL):
    failure = Failure(kind=kind, message=message, where=where)
    return trajectory(name, chain, stop=StopReason.FAILED, failure=failure)


@pytest.fixture
def troubled(tmp_path) -> RunDirectory:
    """Three failures of two kinds and one trajectory without a reward, in two steps."""
    run = RunDirectory(tmp_path / "a run")
    for step, chains in (
        (0, [failed("000000-00000", 0, "tool:look"), trajectory("000000-00000", 1)]),
        (
            1,
            [
                failed("000001-00000", 0, "tool:look"),
                failed("000001-00000", 1, "generate", "[x](javascript:alert(1)) | `rm`", FailureKind.INFRASTRUCTURE),
            ],
        ),
    ):
        write_step(run, step, [group(chains[0].group_id, *chains)], dict.fromkeys(each.id for each in chains))
    return run


def test_failures_are_counted_by_kind_and_place(troubled):
    found = troubles(troubled.path)
    assert [(each.what, each.count, each.example.id) for each in found] == [
        ("tool at tool:look", 2, "000001-00000/0"),  # the newest is the example
        ("infrastructure at generate", 1, "000001-00000/1"),
        ("no reward", 1, "000000-00000/1"),
    ]


def test_the_table_links_and_says_how_to_print(troubled):
    text = troubles_markdown(troubled.path, troubles(troubled.path))
    assert (
        "| tool at tool:look | 2 | no answer | [000001-00000/0](http://127.0.0.1:8300/train/1/000001-00000/0) |" in text
    )
    assert f"agentfly show '{troubled.path}' --step 1 --trajectory 000001-00000/0" in text
    assert "](javascript" not in text
    assert "&#91;x&#93;(javascript:alert(1)) &#124; &#96;rm&#96;" in text


def test_without_failures_the_lowest_rewards_of_the_newest_step(tmp_path):
    run = RunDirectory(tmp_path / "fine")
    for step in (0, 1):
        groups = []
        for index in range(3):
            name = f"{step:06d}-{index:05d}"
            groups.append(group(name, *(trajectory(name, chain) for chain in range(2)), problem=f"p{index}"))
        rewards = {each.id: each.chain + index for index, made in enumerate(groups) for each in made.trajectories}
        write_step(run, step, groups, rewards)
    found = troubles(run.path, most=4)  # two of them, each of another problem
    assert [(each.what, each.example.id) for each in found] == [
        ("reward 0, finished", "000001-00000/0"),
        ("reward 1, finished", "000001-00001/0"),
    ]


def test_nothing_yet(tmp_path):
    assert troubles_markdown(tmp_path, troubles(tmp_path)) == "Nothing failed, and nothing was scored."


def test_the_report_says_what_it_cost():
    step = {
        "rollout/trajectories/count": 8.0,
        "rollout/sampled_tokens/sum": 1000.0,
        "train/loss_tokens/count": 500.0,
        "time/step/seconds": 50.0,
    }
    text = summary_markdown(
        "demo",
        [{"policy": "0 (baseline)"}],
        [(0, step), (1, step)],
        {"run directory": "/runs/demo"},
        pictures={"reward": "figures/reward.png"},
        trouble="| a |",
    )
    for line in (
        "![reward](figures/reward.png)",
        "| trajectories | 16 |",
        "| tokens sampled | 2,000 |",
        "| tokens trained on | 1,000 (50%) |",
        "| time of all steps | 1 min |",
        "| tokens sampled per second | 20 |",
        "## What went worst\n\n| a |",
        "- run directory: `/runs/demo`",
    ):
        assert line in text
