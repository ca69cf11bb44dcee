"""What an update saw of its tokens: there for who looks at it, and nobody's trouble where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from agentfly_lib.errors import ShardError
from agentfly_lib.store import RolloutStore, StepDirectory
from agentfly_lib.store import learned as module
from agentfly_lib.store.learned import read_learned, write_learned
from agentfly_lib.types import TrainingSample


@pytest.fixture
def step(tmp_path) -> StepDirectory:
    directory = StepDirectory(tmp_path / "step")
    RolloutStore.open(directory, step=0, policy_version=0, group_ids=["g"], chains=2)
    return directory


def sample(name: str, segment: int, mask: list[int], advantage: float) -> TrainingSample:
    trained = np.array(mask, bool)
    return TrainingSample(
        trajectory_id=name,
        segment=segment,
        token_ids=np.arange(len(mask), dtype=np.int32),
        loss_mask=trained,
        rollout_logprobs=np.full(len(mask), np.nan, np.float32),
        advantages=np.where(trained, advantage, 0).astype(np.float32),
    )


def write(step: StepDirectory, samples: list[TrainingSample], old: float = -1.0) -> None:
    write_learned(
        step,
        samples,
        old_logprobs=[np.full(each.num_loss_tokens, old) for each in samples],
        logprobs=[np.arange(each.num_loss_tokens, dtype=np.float64) for each in samples],
    )


def test_each_segment_comes_back_in_its_places(step):
    write(step, [sample("g/0", 1, [0, 1, 0, 1], 0.5), sample("g/1", 0, [0, 1], -2.0)])
    found = read_learned(step, ["g/0"])
    assert found.keys() == {("g/0", 1)}
    tokens, nan = found["g/0", 1], np.nan
    np.testing.assert_array_equal(tokens.old_logprobs, [nan, -1, nan, -1])
    np.testing.assert_array_equal(tokens.logprobs, [nan, 0, nan, 1])
    np.testing.assert_array_equal(tokens.advantages, [nan, 0.5, nan, 0.5])


def test_only_the_batches_of_who_is_asked_for_are_read(step, monkeypatch):
    monkeypatch.setattr(module, "_BATCH_ROWS", 2)
    write(step, [sample(f"g/{chain}", 0, [0, 1], float(chain)) for chain in range(5)])
    decoded = []
    whole = module._rows
    monkeypatch.setattr(module, "_rows", lambda batch: decoded.append(batch.num_rows) or whole(batch))
    found = read_learned(step, ["g/4", "g/0", "other"])
    assert {name: float(tokens.advantages[1]) for (name, _), tokens in found.items()} == {"g/4": 4.0, "g/0": 0.0}
    assert decoded == [1, 1]  # rows of two of the three batches


def test_a_step_without_it_knows_nothing(step):
    assert read_learned(step, ["g/0"]) == {}
    write(step, [])
    assert read_learned(step, ["g/0"]) == {}


def test_what_a_run_did_stays_when_its_step_is_trained_again(step):
    write(step, [sample("g/0", 0, [0, 1], 1.0)], old=-1.0)
    write(step, [sample("g/0", 0, [0, 1], 1.0)], old=-9.0)
    assert read_learned(step, ["g/0"])["g/0", 0].old_logprobs[1] == -1.0


def test_numbers_of_other_rollouts_are_nobody_s(step, monkeypatch):
    write(step, [sample("g/0", 0, [0, 1], 1.0)])
    monkeypatch.setattr(module, "_digest", lambda _: "others")
    assert read_learned(step, ["g/0"]) == {}
    write(step, [sample("g/0", 0, [0, 1], 1.0)], old=-9.0)
    assert read_learned(step, ["g/0"])["g/0", 0].old_logprobs[1] == -9.0


def test_a_damaged_file_is_named_and_a_strange_one_is_passed_over(step):
    write(step, [sample("g/0", 0, [0, 1], 1.0)])
    data = bytearray(step.learned_file.read_bytes())
    middle = data.index(b"g/0")
    data[middle - 40 : middle + 120] = b"\xff" * 160
    step.learned_file.write_bytes(data)
    with pytest.raises(ShardError, match=r"tokens\.arrow is damaged"):
        read_learned(step, ["g/0"])
    step.learned_file.write_bytes(b"not arrow")
    assert read_learned(step, ["g/0"]) == {}
