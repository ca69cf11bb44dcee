"""Pictures are whole PNG files, drawn from whatever there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentfly_lib.tracking.plots import EvaluationPoint, reward_curve, time_split

PNG = b"\x89PNG\r\n\x1a\n"


def points() -> list[EvaluationPoint]:
    return [
        EvaluationPoint(step=0, mean=0.09, low=0.05, high=0.13, greedy=0.0),
        EvaluationPoint(step=10, mean=0.80, low=0.75, high=0.85),
    ]


def test_a_reward_curve(tmp_path: Path):
    path = reward_curve([(0, 0.1), (1, 0.2)], points(), tmp_path / "plots" / "reward.png")

    assert path.read_bytes().startswith(PNG)
    assert [file.name for file in path.parent.iterdir()] == ["reward.png"], "no temporary file stays"


@pytest.mark.parametrize("train", [[], [(0, -3.0), (1, 5.0)]])
@pytest.mark.parametrize("evaluations", [[], points()[:1]])
@pytest.mark.filterwarnings("error")
def test_a_curve_of_little_or_of_unusual_rewards(
    tmp_path: Path, train: list[tuple[int, float]], evaluations: list[EvaluationPoint]
):
    assert reward_curve(train, evaluations, tmp_path / "reward.png").stat().st_size > 1000


@pytest.mark.filterwarnings("error")
def test_a_time_split_of_no_step_one_step_and_many_parts(tmp_path: Path):
    for steps in (
        [],
        [(0, {"generation": 1.0})],
        [(step, {f"part {i}": 0.1 * i for i in range(14)}) for step in range(3)],
    ):
        assert time_split(steps, tmp_path / "time.png").read_bytes().startswith(PNG)


def test_drawing_leaves_the_global_state_of_matplotlib_alone(tmp_path: Path):
    import sys

    already = "matplotlib.pyplot" in sys.modules
    reward_curve([(0, 0.1)], points(), tmp_path / "reward.png")

    assert ("matplotlib.pyplot" in sys.modules) == already
