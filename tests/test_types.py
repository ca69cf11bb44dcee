"""What a segment, a trajectory and a sample refuse to be."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from agentfly_lib.types import FinishReason, ImageSpan, Segment, StopReason, TrainingSample, Trajectory, Turn

DIGEST = hashlib.sha256(b"one").hexdigest()


def span(start: int, end: int, **changes) -> ImageSpan:
    return ImageSpan(**({"digest": DIGEST, "start": start, "end": end, "grid": (1, 2, 2)} | changes))


def segment(**changes) -> Segment:
    mask = np.array([False] * 6 + [True] * 2)
    turn = {"message": {"role": "assistant", "content": "a"}, "sampled": True, "finish": FinishReason.STOP}
    values = {
        "token_ids": np.arange(8, dtype=np.int32),
        "loss_mask": mask,
        "logprobs": np.where(mask, -1, np.nan).astype(np.float32),
        "turns": (Turn(**turn, start=6, end=8, policy_version=3),),
    }
    return Segment(**(values | changes))


class TestVersions:
    def test_are_those_of_the_turns_unless_given(self):
        assert segment().versions.tolist() == [-1] * 6 + [3, 3]

    def test_count_for_equality(self):
        given = segment(versions=np.array([-1] * 6 + [3, 4], np.int32))
        assert given != segment()
        assert given == dataclasses.replace(given)

    def test_are_as_many_as_tokens(self):
        with pytest.raises(ValueError, match="7 versions"):
            segment(versions=np.zeros(7, np.int32))

    def test_of_tokens_that_no_turn_speaks_of_are_unknown(self):
        assert segment(turns=()).versions.tolist() == [-1] * 8


class TestImages:
    def test_stand_one_behind_the_other_before_what_was_sampled(self):
        images = (span(0, 2), span(2, 6))
        assert segment(images=images).images == images
        assert segment(images=images) != segment()

    @pytest.mark.parametrize(
        ("images", "fault"),
        [
            ((span(2, 4), span(3, 5)), "begins before the one before it ends"),
            ((span(3, 5), span(0, 2)), "begins before the one before it ends"),
            ((span(5, 7),), "covers tokens that the policy sampled"),
            ((span(5, 9),), "is cut off"),
        ],
    )
    def test_elsewhere_they_are_refused(self, images, fault):
        with pytest.raises(ValueError, match=fault):
            segment(images=images)

    @pytest.mark.parametrize(
        ("changes", "fault"),
        [
            ({"start": 3, "end": 3}, "at least one placeholder"),
            ({"start": -1}, "at least one placeholder"),
            ({"digest": "A" * 64}, "named by the SHA-256"),
            ({"digest": "abc"}, "named by the SHA-256"),
            ({"grid": (1, 0, 2)}, "the grid of an image"),
        ],
    )
    def test_a_span_is_one(self, changes, fault):
        with pytest.raises(ValueError, match=fault):
            span(**({"start": 0, "end": 2} | changes))

    def test_a_trajectory_and_a_sample_have_the_pictures_that_they_show(self):
        part = segment(images=(span(0, 2),))
        chain = {"id": "g/0", "problem_id": "p", "group_id": "g", "chain": 0, "stop": StopReason.FINISHED}
        assert Trajectory(**chain, segments=(part,), pictures={DIGEST: b"one"}).pictures[DIGEST] == b"one"
        with pytest.raises(ValueError, match=r"trajectory g/0 shows the image"):
            Trajectory(**chain, segments=(part,))
        arrays = {"token_ids": part.token_ids, "loss_mask": part.loss_mask, "rollout_logprobs": part.logprobs}
        sample = {"trajectory_id": "g/0", **arrays, "advantages": np.zeros(8, np.float32)}
        TrainingSample(**sample, images=part.images, pictures={DIGEST: b"one"})
        with pytest.raises(ValueError, match="lacks the picture"):
            TrainingSample(**sample, images=part.images)
        with pytest.raises(ValueError, match="covers tokens"):
            TrainingSample(**(sample | {"loss_mask": np.ones(8, bool)}), images=part.images, pictures={DIGEST: b"one"})
