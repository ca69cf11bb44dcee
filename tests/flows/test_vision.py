"""The whole flow with a policy that sees: pictures from a tool to the engine, to the shards, and to the gradient."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from agentfly_lib.chat.image_reader import ImageReader, vision_token_ids
from agentfly_lib.chat.images import digest_of
from agentfly_lib.evaluation.report import read_report
from agentfly_lib.refs import ModelRef
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.types import Trajectory

pytestmark = [pytest.mark.stack, pytest.mark.slow]

STEPS = 4


@pytest.fixture(scope="module")
def run(agentfly, root) -> RunDirectory:
    """The recipe `vision-ci`, from start to end; greedy evaluations are those of the recipe `ci`."""
    options = ["--set", f"run.root={root}", "--set", "evaluation.greedy=false"]
    command = agentfly("train", "recipes/vision-ci.toml", *options)
    assert command.status == 0, command.output[-2000:] + command.errors[-4000:]
    return RunDirectory(root / "vision-ci")


@pytest.fixture(scope="module")
def trajectories(run) -> list[Trajectory]:
    groups = [group for step in range(STEPS) for group in load_scored_groups(run.step(step))]
    return [trajectory for group in groups for trajectory in group.trajectories]


def test_the_held_out_reward_rises(run) -> None:
    before, after = (read_report(run.evaluation(version, "sampled").report_file) for version in (0, STEPS))
    assert before.problems == after.problems == 32
    assert after.reward.mean > before.reward.mean + 0.15


def test_engine_and_learner_agree_on_every_token_whatever_was_seen_before_it(run) -> None:
    for step in range(STEPS):
        metrics = json.loads(run.step(step).metrics_file.read_text())
        assert metrics["train/mismatch/max"] < 1e-4
        assert metrics["train/missing_logprobs/count"] == 0
        assert metrics["rollout/trajectories/count"] == 64
        if step:
            assert metrics["sync/canary_difference/mean"] < 1e-4


def test_shards_hold_what_was_seen(run, trajectories) -> None:
    """Digests name the bytes, and the model's own processor makes as many features of them as there are tokens."""
    model = ModelRef.model_validate_json(run.model_file.read_text()).path
    reader, banned = ImageReader.of(model), vision_token_ids(model)
    shown = 0
    for trajectory in trajectories:
        for segment in trajectory.segments:
            assert not np.isin(segment.token_ids[segment.loss_mask], banned).any()
            placed = reader.placed(segment.token_ids.tolist(), [trajectory.pictures[i.digest] for i in segment.images])
            for image, (start, seen) in zip(segment.images, placed, strict=True):
                assert (image.start, image.end, image.grid) == (start, start + reader.tokens_of(seen.grid), seen.grid)
                assert digest_of(trajectory.pictures[image.digest]) == image.digest
                shown += 1
    assert shown > len(trajectories) // 2, "most chains look"


def test_looking_is_what_is_rewarded(trajectories) -> None:
    looked = [t.reward for t in trajectories if t.pictures and t.reward is not None]
    guessed = [t.reward for t in trajectories if not t.pictures and t.reward is not None]
    assert float(np.mean(looked)) > float(np.mean(guessed)) + 0.1


def test_training_again_on_the_stored_rollouts_gives_the_same_weights(run, tmp_path) -> None:
    weights = tmp_path / "again.safetensors"
    program = Path(__file__).with_name("replay_program.py")
    subprocess.run([sys.executable, str(program), str(run.path), str(weights)], check=True, timeout=240)
    again, kept = load_file(weights), load_file(run.checkpoint(STEPS) / "hf" / "model.safetensors")
    assert again.keys() == kept.keys()
    assert any(".visual." in name for name in kept)
    assert all(np.array_equal(again[name], kept[name]) for name in kept)
