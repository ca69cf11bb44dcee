"""What of a run is due, read from what lies in its directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.errors import ConfigError
from agentfly_lib.pipeline.schedule import Schedule
from agentfly_lib.store.layout import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "demo")


@pytest.fixture
def schedule(run: RunDirectory) -> Schedule:
    """Ten steps, a checkpoint every fourth version, an evaluation every fifth."""
    config = load_config(Path("recipes/ci.toml"))
    every = {
        "run": config.run.model_copy(update={"steps": 10}),
        "checkpoint": config.checkpoint.model_copy(update={"every_steps": 4}),
        "evaluation": config.evaluation.model_copy(update={"every_steps": 5, "greedy": False}),
    }
    made: RunConfig = config.model_copy(update=every)
    return Schedule(made, run)


def updated(run: RunDirectory, *steps: int) -> None:
    for step in steps:
        run.step(step).path.mkdir(parents=True)
        run.step(step).update_file.write_text("{}")


def test_checkpoints_and_evaluations_come_round_and_at_the_end(schedule: Schedule) -> None:
    versions = range(11)
    assert [version for version in versions if schedule.checkpoint_due(version)] == [4, 8, 10]
    assert [version for version in versions if schedule.evaluation_due(version)] == [0, 5, 10]
    assert schedule.evaluation_modes == ("sampled",)


def test_what_is_there_is_not_due(schedule: Schedule, run: RunDirectory) -> None:
    run.checkpoint(4).mkdir(parents=True)
    run.evaluation_metrics(5).parent.mkdir(parents=True)
    run.evaluation_metrics(5).write_text("{}")
    assert not schedule.checkpoint_due(4)
    assert not schedule.evaluation_due(5)
    assert schedule.checkpoints() == [4]


def test_what_a_new_learner_has_to_make_again_is_counted_from_the_checkpoint_before(
    schedule: Schedule, run: RunDirectory
) -> None:
    assert schedule.since_checkpoint(3) == 3, "from the starting model"
    for version in (4, 8):
        run.checkpoint(version).mkdir(parents=True)
    assert [schedule.since_checkpoint(version) for version in (3, 4, 7, 8, 10)] == [3, 0, 3, 0, 2]


def test_a_run_is_finished_when_everything_is(schedule: Schedule, run: RunDirectory) -> None:
    updated(run, 0, 1)
    assert schedule.first_open_step() == 2
    with pytest.raises(ConfigError, match=r"demo is not finished \(2 of 10 steps\)"):
        schedule.finished_steps()
    updated(run, *range(2, 10))
    assert schedule.finished_steps() == list(range(10))
    assert not schedule.finished()
    run.checkpoint(10).mkdir(parents=True)
    for version in (0, 5, 10):
        run.evaluation_metrics(version).parent.mkdir(parents=True)
        run.evaluation_metrics(version).write_text("{}")
    assert schedule.finished()


def test_a_damaged_step_of_the_past_is_made_again_with_what_came_of_it(schedule: Schedule, run: RunDirectory) -> None:
    """What docs/operating.md, A damaged file, says about a file of step 6, in a run of 10 steps that is finished."""
    updated(run, *range(10))
    for version in (4, 8, 10):
        run.checkpoint(version).mkdir(parents=True)
    for version in (0, 5, 10):
        run.evaluation_metrics(version).parent.mkdir(parents=True)
        run.evaluation_metrics(version).write_text("{}")
    assert schedule.finished()
    for path in [
        *(run.step(step).path for step in range(6, 10)),
        run.checkpoint(8),
        run.checkpoint(10),
        run.evaluation_metrics(10).parent,
    ]:
        shutil.rmtree(path)
    assert schedule.first_open_step() == 6
    assert schedule.since_checkpoint(6) == 2, "the learner trains again on steps 4 and 5, which are whole"
    versions = range(6, 11)  # that the run comes through again
    assert [version for version in versions if schedule.checkpoint_due(version)] == [8, 10]
    assert [version for version in versions if schedule.evaluation_due(version)] == [10]
