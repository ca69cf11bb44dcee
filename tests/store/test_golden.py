"""What version 1 wrote is read forever: files that its own code wrote lie in `golden/version-1`, never to be rewritten.

`step` was written from the values below, which hold every kind of value that a shard can carry; `run` is the run
directory of a training run of three steps, without its checkpoints. A new version of a schema gets a folder of its own
beside this one, and this one stays.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from agentfly_lib.cli import app
from agentfly_lib.configs import load_config
from agentfly_lib.errors import AgentFlyError
from agentfly_lib.evaluation import read_report
from agentfly_lib.evaluation.runs import find_runs
from agentfly_lib.refs import ModelRef, StepReport
from agentfly_lib.store import (
    RolloutStore,
    RunDirectory,
    Score,
    StepDirectory,
    iter_groups,
    load_scored_groups,
    outcome_of,
    read_part,
    read_rollout_manifest,
    read_score_manifest,
    read_scores,
    run_balance,
    step_balance,
)
from agentfly_lib.store.atomic import read_json
from agentfly_lib.store.layout_version import LAYOUT_VERSION, check_layout, write_layout
from agentfly_lib.types import (
    Failure,
    FailureKind,
    FinishReason,
    Problem,
    Segment,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

VERSION_1 = Path(__file__).parent / "golden" / "version-1"
NAN = float("nan")


def said(start: int, end: int, text: str, **more) -> Turn:
    message = {"role": "assistant", "content": text}
    return Turn(message=message, start=start, end=end, sampled=True, finish=FinishReason.STOP, **more)


def segment(ids: list[int], sampled: list[int], turns: tuple[Turn, ...], logprob: float = -0.5) -> Segment:
    mask = np.isin(np.arange(len(ids)), sampled)
    return Segment(
        token_ids=np.array(ids, np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, np.float32(logprob), np.float32(NAN)),
        turns=turns,
    )


def chain(group: str, number: int, segments: tuple[Segment, ...], stop: StopReason, **more) -> Trajectory:
    return Trajectory(
        id=f"{group}/{number}", problem_id="p", group_id=group, chain=number, segments=segments, stop=stop, **more
    )


TOOL = Turn(
    message={"role": "tool", "tool_call_id": "call-0", "name": "double", "content": "4 \ud83d"},  # half of a pair
    start=4,
    end=6,
    sampled=False,
    seconds=0.25,
    reward=0.5,
)
ACTED = segment(
    [1, 2, 3, 4, 5, 6, 7, 151_642],
    [2, 3, 6, 7],
    (said(2, 4, "[double 2]", policy_version=3), TOOL, said(6, 8, "4", policy_version=4, answer="4")),
)
REWRITTEN = segment([9, 8, 7], [2], (said(2, 3, "4 \N{SNOWMAN}", policy_version=4),), logprob=-0.0)
EMPTY = segment([], [], ())
FAILURE = Failure(kind=FailureKind.TOOL, message="it fell over", where="tool:double", attempts=2)
GROUPS = (
    TrajectoryGroup(
        id="000004-00000",
        problem=Problem(
            id="p",
            messages=({"role": "system", "content": "Calculate."}, {"role": "user", "content": "2 + 2?"}),
            columns={"answer": "4", "rows": [1, 2.5, None], "nested": {"deep": True}},
        ),
        trajectories=(
            chain("000004-00000", 0, (ACTED, REWRITTEN), StopReason.FINISHED, metrics={"tool_calls": 1.0}),
            chain("000004-00000", 1, (ACTED,), StopReason.MAX_TURNS, env_reward=-1.5, attempt=1),
        ),
    ),
    TrajectoryGroup(
        id="000004-00001",
        problem=Problem(id="q", messages=({"role": "user", "content": "?"},)),
        trajectories=(
            chain("000004-00001", 0, (EMPTY,), StopReason.FAILED, failure=FAILURE),
            chain("000004-00001", 1, (), StopReason.NO_TOOL_CALL),
        ),
    ),
)
SCORES = tuple(
    Score(
        trajectory_id=identity, outcome=outcome_of(stop, reward), reward=reward, parts=parts, seconds=0.5, error=error
    )
    for identity, stop, reward, parts, error in (
        ("000004-00000/0", StopReason.FINISHED, 1.0, {"right": 1.0, "short": 0.0}, None),
        ("000004-00000/1", StopReason.MAX_TURNS, 0.1, {"right": 0.1}, None),
        ("000004-00001/0", StopReason.FAILED, None, {}, "it failed"),
        ("000004-00001/1", StopReason.NO_TOOL_CALL, None, {}, "no answer \ud83d"),
    )
)


@pytest.fixture
def step() -> StepDirectory:
    return StepDirectory(VERSION_1 / "step")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy: commands may leave files in a run directory."""
    return Path(shutil.copytree(VERSION_1 / "run", tmp_path / "golden"))


def test_the_file_itself_says_that_it_is_version_1(step):
    schema = pa.ipc.open_file(step.rollouts / "part-00000.arrow").schema
    assert schema.metadata[b"agentfly.kind"] == b"rollouts"
    assert schema.metadata[b"agentfly.version"] == b"1"
    assert "versions" not in schema.names


def test_rollouts_come_back_bit_for_bit(step):
    (part,) = read_rollout_manifest(step).parts
    groups = read_part(step.rollouts / part.name, part)
    assert tuple(groups) == GROUPS
    first = groups[0].trajectories[0].segments
    assert np.signbit(first[1].logprobs[2])
    assert np.isnan(first[1].logprobs[0])
    assert first[0].turns[1].reward == 0.5
    assert first[0].turns[2].answer == "4"


def test_scores_come_back_as_they_were(step):
    manifest = read_score_manifest(step)
    (part,) = manifest.parts
    assert tuple(read_scores(step.scores / part.name, part)) == SCORES
    assert manifest.reward == "right"


def test_the_manifest_keeps_what_was_asked_for_and_what_was_given_up(step):
    manifest = read_rollout_manifest(step)
    assert manifest.group_ids == ("000004-00000", "000004-00001", "000004-00002")
    assert manifest.refills == (1,)
    assert manifest.dropped_groups == {"000004-00002": "an outage"}
    balance = step_balance(step)
    assert (balance.requested, balance.scored, balance.truncated, balance.failed, balance.dropped) == (6, 1, 1, 1, 3)


def test_a_collection_of_version_1_is_still_complete(step, tmp_path):
    copy = StepDirectory(Path(shutil.copytree(step.path, tmp_path / "step")))
    asked = read_rollout_manifest(copy).first_group_ids
    store = RolloutStore.open(copy, step=4, policy_version=3, group_ids=asked, chains=2)
    assert store.complete
    assert store.missing == ()


def test_a_run_directory_opens(run):
    directory = RunDirectory(run)
    config = load_config(directory.config_file)
    assert (config.run.name, config.run.steps, config.rollout.chains) == ("golden", 3, 8)
    assert ModelRef.model_validate(read_json(directory.model_file)).path == Path("/models/tiny")
    assert directory.first_open_step(3) == 3
    balances = run_balance(directory)
    assert [balance.requested for balance in balances] == [32, 32, 32]
    assert all(balance.balanced for balance in balances)
    for number in directory.steps():
        groups = load_scored_groups(directory.step(number))
        assert {each.reward for group in groups for each in group.trajectories} <= {0.0, 1.0, None}
        assert StepReport.model_validate(read_json(directory.step(number).update_file)).policy_version == number + 1
    report = read_report(directory.evaluation(3, "greedy").report_file)
    assert report.reward is not None
    assert report.reward.mean == 27 / 32
    assert report.problems == sum(len(groups) for _, groups in all_groups(directory.evaluation(3, "greedy")))


def all_groups(step: StepDirectory) -> list:
    return list(iter_groups(step, read_rollout_manifest(step)))


def test_a_run_directory_says_its_layout(run):
    directory = RunDirectory(run)
    assert check_layout(directory) == 1  # nothing says so: it is older than the saying
    write_layout(directory)
    assert check_layout(directory) == LAYOUT_VERSION


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{{"layout": {LAYOUT_VERSION + 1}, "program": "9.1.0", "more": 1}}', "written by release 9.1.0"),
        ('{"layout": 0, "program": "1"}', "is not one that this program can read"),
        ("[]", "is not one that this program can read"),
    ],
)
def test_a_layout_of_a_newer_release_is_refused_by_every_command(run, text, message):
    RunDirectory(run).layout_file.write_text(text)
    with pytest.raises(AgentFlyError, match=message):
        check_layout(RunDirectory(run))
    for command in (["ledger", run], ["show", run], ["compare", run, run]):
        assert message in str(CliRunner().invoke(app, list(map(str, command))).exception)
    assert message in find_runs(run.parent)[1][0]


def test_commands_read_it(run):
    runner = CliRunner()
    for arguments, expected in (
        (["ledger", str(run)], "ok"),
        (["show", str(run), "--step", "1"], "calculator"),
        (["runs", str(run.parent)], "golden"),
        (["compare", str(run), str(run)], "golden"),
    ):
        done = runner.invoke(app, arguments)
        assert done.exit_code == 0, f"{arguments}: {done.output} {done.exception}"
        assert expected in done.output
    found, faults = find_runs(run.parent)
    assert len(found) == 1
    assert not faults


def test_the_viewer_shows_it(run, tmp_path):
    page = tmp_path / "group.html"
    done = CliRunner().invoke(app, ["view", str(run), "--group", "000001-00000", "--export", str(page)])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    assert "000001-00000/7" in page.read_text()
