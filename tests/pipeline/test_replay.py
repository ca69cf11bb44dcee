"""A replay compares bits, so it is refused where bits cannot be equal."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from agentfly_lib.configs import LearnerConfig
from agentfly_lib.errors import UserError
from agentfly_lib.pipeline.replay import require_same_shape
from agentfly_lib.training.checkpoint import CheckpointState

TWO_RANKS = CheckpointState(
    policy_version=4, nonfinite_in_row=0, ranks=2, zero_stage=2, dtype="float32", trained_with={}
)


def test_a_checkpoint_of_the_same_shape_is_taken() -> None:
    require_same_shape(TWO_RANKS, LearnerConfig(ranks=2, zero_stage=2), Path("000004"))


@pytest.mark.parametrize("learner", [LearnerConfig(ranks=1, zero_stage=2), LearnerConfig(ranks=2, zero_stage=1)])
def test_another_shape_is_refused_even_where_a_run_could_go_on(learner: LearnerConfig) -> None:
    reshaping = learner.model_copy(update={"allow_reshape": True})
    with pytest.raises(UserError, match=r"000004 was written by 2 rank\(s\) with ZeRO 2.*not bit for bit"):
        require_same_shape(TWO_RANKS, reshaping, Path("000004"))
