"""What is imitated: good enough, once, not too many of one problem; laid out as steps that anyone can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentfly_lib.configs import AcceptedAdvantageConfig, RunConfig, ShardsDataConfig
from agentfly_lib.data.imitation import check_tokens, imitated, lay_out, select_trajectories
from agentfly_lib.data.preferences import export_preferences, preference_pair
from agentfly_lib.errors import ConfigError, DataError
from agentfly_lib.store.atomic import write_json
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.ledger import step_balance
from agentfly_lib.store.manifest import RolloutStore, iter_groups
from agentfly_lib.store.score import Score, outcome_of
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.store.scores import ScoreStore
from agentfly_lib.types import Problem, Segment, StopReason, Trajectory, TrajectoryGroup, Turn

FINISHED, CUT, FAILED = StopReason.FINISHED, StopReason.MAX_TOKENS, StopReason.FAILED


def member(group: str, chain: int, reply: str, stop: StopReason) -> Trajectory:
    ids = [1, 2, *map(ord, reply)]
    mask = np.arange(len(ids)) >= 2
    segment = Segment(
        token_ids=np.array(ids, np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, np.float32(-1), np.float32(np.nan)),
        turns=(Turn(message={"role": "assistant", "content": reply}, start=2, end=len(ids), sampled=True),),
    )
    return Trajectory(
        id=f"{group}/{chain}", problem_id=group[-1], group_id=group, chain=chain, segments=(segment,), stop=stop
    )


def write_run(path: Path, steps: list[list[list[tuple[Any, ...]]]]) -> Path:
    """Steps of groups of chains (reply, reward, stop); group k of any step is problem k."""
    run = RunDirectory(path)
    for step, groups in enumerate(steps):
        names = [f"{step:06d}-{index}" for index in range(len(groups))]
        store = RolloutStore.open(run.step(step), step=step, policy_version=step, group_ids=names, chains=3)
        store.append(
            [
                TrajectoryGroup(
                    id=name,
                    problem=Problem(id=name[-1], messages=({"role": "user", "content": f"problem {name[-1]}"},)),
                    trajectories=tuple(
                        member(name, chain, reply, stop) for chain, (reply, _, stop) in enumerate(chains)
                    ),
                )
                for name, chains in zip(names, groups, strict=True)
            ]
        )
        rewards = {
            f"{name}/{chain}": reward
            for name, chains in zip(names, groups, strict=True)
            for chain, (_, reward, _) in enumerate(chains)
        }
        rollouts, scores = store.finish(), ScoreStore(run.step(step), "right")
        for part, of_part in iter_groups(run.step(step), rollouts):
            scores.append(
                part.name,
                [
                    Score(
                        trajectory_id=each.id, outcome=outcome_of(each.stop, rewards[each.id]), reward=rewards[each.id]
                    )
                    for group in of_part
                    for each in group.trajectories
                ],
            )
        scores.finish(rollouts)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(
        tmp_path / "run",
        [
            [
                [("long answer", 1.0, FINISHED), ("good", 1.0, FINISHED), ("bad", 0.0, FINISHED)],
                [("cut", 1.0, CUT), ("lost", None, FAILED), ("unknown", None, FINISHED)],
            ],
            [
                [("good", 1.0, FINISHED), ("other", 2.0, FINISHED), ("bad", 0.0, FINISHED)],
                [("good", 1.0, FINISHED), ("fine", 0.5, FINISHED), ("fine", 0.5, FINISHED)],
            ],
        ],
    )


def replies(run: Path, *, min_reward: Any = 1.0, distinct: bool = True, **data: Any) -> list[str]:
    selection = select_trajectories(
        ShardsDataConfig(runs=(run,), **data), AcceptedAdvantageConfig(min_reward=min_reward, distinct=distinct)
    )
    return [trajectory.final_response for _, trajectory in selection.chosen]


def test_what_is_good_enough_and_new(run: Path) -> None:
    # `good` of step 1 repeats that of step 0 for problem 0, and is new for problem 1; `cut` was truncated.
    assert replies(run) == ["long answer", "good", "other", "good"]
    selection = select_trajectories(ShardsDataConfig(runs=(run,)), AcceptedAdvantageConfig())
    counts = (selection.seen, selection.too_low, selection.unscored, selection.truncated, selection.repeated)
    assert counts == (12, 4, 2, 1, 1)
    again = select_trajectories(ShardsDataConfig(runs=(run,)), AcceptedAdvantageConfig())
    fewer = select_trajectories(ShardsDataConfig(runs=(run,)), AcceptedAdvantageConfig(min_reward=2.0))
    assert (selection.ref, selection.ref.trajectories) == (again.ref, 4)
    assert fewer.ref.fingerprint != selection.ref.fingerprint
    assert selection.text.startswith("4 of 12 trajectories: 4 below the reward, 2 without one")
    assert replies(run, distinct=False) == ["long answer", "good", "good", "other", "good"]
    assert replies(run, truncated=True) == ["long answer", "good", "cut", "other", "good"]
    assert replies(run, min_reward=0.5) == ["long answer", "good", "other", "good", "fine"]
    assert replies(run, min_reward="none", distinct=False)[:3] == ["long answer", "good", "bad"]


def test_the_best_and_then_the_shortest_of_a_problem_are_kept(run: Path) -> None:
    assert replies(run, per_problem=1) == ["other", "good"]
    assert replies(run, per_problem=2) == ["good", "other", "good"]


def test_nothing_to_imitate_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0 of 12 trajectories: 10 below the reward.*lower"):
        replies(run, min_reward=5.0)
    with pytest.raises(DataError, match="has no scored step"):
        replies(tmp_path / "nowhere")


def test_a_step_that_is_half_scored_is_left_out(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = RunDirectory(run).step(1).score_manifest
    write_json(manifest, json.loads(manifest.read_text()) | {"complete": False, "counts": {}})
    assert replies(run) == ["long answer", "good"]
    assert "1 of 2 steps are not scored to the end" in caplog.text
    assert export_preferences([run], tmp_path / "pairs.parquet") == (1, 2)


def test_a_step_is_laid_out_like_a_collected_one_and_a_second_time_changes_nothing(run: Path, tmp_path: Path) -> None:
    selection = select_trajectories(ShardsDataConfig(runs=(run,)), AcceptedAdvantageConfig())
    directory = RunDirectory(tmp_path / "new").step(3)
    lay_out(directory, 3, selection.chosen)
    before = {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    groups = load_scored_groups(directory)
    assert [group.id for group in groups] == [f"000003-0000{index}" for index in range(4)]
    assert [group.trajectories[0].reward for group in groups] == [1.0, 1.0, 2.0, 1.0]
    for group, (problem, trajectory) in zip(groups, selection.chosen, strict=True):
        assert group.problem == problem
        assert group.trajectories[0].segments == trajectory.segments
    assert step_balance(directory).balanced
    lay_out(directory, 3, selection.chosen)
    assert {path: path.read_bytes() for path in directory.path.rglob("*") if path.is_file()} == before


def test_tokens_of_another_tokenizer_are_refused(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, text in (("own", "{}"), ("same", "{}"), ("other", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)

    def check(name: str) -> None:
        write_json(RunDirectory(run).model_file, {"path": str(tmp_path / name), "fingerprint": "x"})
        check_tokens(tmp_path / "own", ShardsDataConfig(runs=(run,)))

    check("same")
    assert not caplog.records
    with pytest.raises(ConfigError, match="tokenizer differs"):
        check("other")
    check("gone")
    assert "cannot be compared" in caplog.text


SMALLEST = {"run": {"name": "x"}, "model": {"type": "tiny"}}


def test_a_recipe_of_shards_follows_from_its_data(run: Path) -> None:
    config = RunConfig.model_validate(SMALLEST | {"data": {"type": "shards", "runs": [str(run)]}})
    assert (config.rollout.chains, config.algorithm.loss.type, config.algorithm.correction.type) == (1, "nll", "none")
    assert imitated(config)[0].runs == (run,)
    with pytest.raises(ValueError, match="imitates trajectories"):
        RunConfig.model_validate(
            SMALLEST
            | {"data": {"type": "shards", "runs": [str(run)]}, "algorithm": {"advantage": {"type": "reinforce_pp"}}}
        )
    with pytest.raises(ValueError, match="have no group"):
        RunConfig.model_validate(SMALLEST | {"data": {"type": "shards", "runs": [str(run)]}, "rollout": {"chains": 8}})
    with pytest.raises(ConfigError, match="problems to ask, not trajectories"):
        imitated(RunConfig.model_validate(SMALLEST | {"data": {"type": "arithmetic"}}))


def test_preferences_are_a_file_that_datasets_reads(run: Path, tmp_path: Path) -> None:
    import datasets

    output = tmp_path / "preferences.parquet"
    assert export_preferences([run], output) == (3, 4)
    rows = datasets.load_dataset("parquet", data_files=str(output), cache_dir=str(tmp_path / "cache"))[
        "train"
    ].to_list()
    # Step 0: of the right ones the shorter; a group with one score gives none. Step 1: 2.0 over 0.0, 1.0 over 0.5.
    assert [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows] == [
        ("good", "bad"),
        ("other", "bad"),
        ("good", "fine"),
    ]
    assert rows[2] == {
        "prompt": [{"role": "user", "content": "problem 1"}],
        "chosen": [{"role": "assistant", "content": "good"}],
        "rejected": [{"role": "assistant", "content": "fine"}],
        "chosen_reward": 1.0,
        "rejected_reward": 0.5,
        "problem_id": "1",
        "chosen_id": "000001-1/0",
        "rejected_id": "000001-1/1",
    }
    assert export_preferences([run], output, margin=0.6) == (2, 4)
    with pytest.raises(DataError, match="in none of 4 groups"):
        export_preferences([run], tmp_path / "none.parquet", margin=9.0)
    assert not (tmp_path / "none.parquet").exists()


def test_text_that_is_half_a_character_is_written(run: Path) -> None:
    half, whole = member("0-0", 0, "ab", FINISHED), member("0-0", 1, "cd", FINISHED)
    object.__setattr__(half.segments[0].turns[0], "message", {"role": "assistant", "content": "\ud83d"})
    object.__setattr__(half, "reward", 1.0)
    object.__setattr__(whole, "reward", 0.0)
    group = TrajectoryGroup(id="0-0", problem=Problem(id="0", messages=()), trajectories=(half, whole))
    pair = preference_pair(group)
    assert pair is not None
    assert pair["chosen"] == [{"role": "assistant", "content": "?"}]
