"""A segment is what was appended: masks by who made the tokens, log-probs with their tokens, spans in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.rollout import SegmentBuilder
from agentfly_lib.types import FinishReason, Turn

REPLY = {"role": "assistant", "content": "four"}
RESULT = {"role": "tool", "content": "4"}


def sampled(builder: SegmentBuilder, ids, logprobs) -> None:
    builder.sampled(ids, logprobs, REPLY, finish=FinishReason.STOP, policy_version=3, seconds=0.5)


def test_prompt_reply_result_reply():
    builder = SegmentBuilder()
    builder.prompt([1, 2, 3])
    sampled(builder, [4, 5], [-0.5, -0.25])
    builder.observed([6, 7], [RESULT], seconds=0.125)
    sampled(builder, [8], [-1.0])
    segment = builder.build()
    assert segment.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8] == builder.token_ids
    assert segment.loss_mask.tolist() == [False, False, False, True, True, False, False, True]
    np.testing.assert_array_equal(segment.logprobs, np.array([np.nan] * 3 + [-0.5, -0.25] + [np.nan] * 2 + [-1.0]))
    turn = Turn(message=REPLY, start=3, end=5, sampled=True, finish=FinishReason.STOP, policy_version=3, seconds=0.5)
    assert segment.turns[0] == turn
    assert segment.turns[1] == Turn(message=RESULT, start=5, end=7, sampled=False, seconds=0.125)
    assert (segment.turns[2].start, segment.turns[2].end) == (7, 8)
    assert (len(builder), builder.num_sampled) == (8, 3)
    assert [a.dtype for a in (segment.token_ids, segment.loss_mask, segment.logprobs)] == [
        np.int32,
        np.bool_,
        np.float32,
    ]


def test_each_sampled_token_has_the_version_that_sampled_it():
    builder = SegmentBuilder()
    builder.prompt([1, 2])
    builder.sampled(
        [3, 4, 5], [-1.0] * 3, REPLY, finish=FinishReason.STOP, policy_version=3, versions=[3, 4, 4], seconds=0.5
    )
    builder.observed([6], [RESULT])
    builder.sampled([7], [-1.0], REPLY, finish=FinishReason.STOP, policy_version=4)
    segment = builder.build()
    assert segment.versions.tolist() == [-1, -1, 3, 4, 4, -1, 4]
    assert segment.versions.dtype == np.int32
    with pytest.raises(ValueError, match="2 tokens, 1 versions"):
        builder.sampled([8, 9], [-1.0] * 2, REPLY, finish=FinishReason.STOP, policy_version=4, versions=[4])
    assert builder.build() == segment


def test_the_mask_is_by_origin_even_where_the_token_is_the_same():
    builder = SegmentBuilder()
    builder.prompt([0, 7])
    sampled(builder, [7, 0], [-1.0, -2.0])
    builder.observed([0, 7], [RESULT])
    assert builder.build().loss_mask.tolist() == [False, False, True, True, False, False]


def test_a_missing_log_prob_is_nan_and_counted():
    builder = SegmentBuilder()
    builder.prompt([1])
    sampled(builder, [2, 3, 4], [-0.5, None, float("nan")])
    assert builder.missing_logprobs == 2
    np.testing.assert_array_equal(builder.build().logprobs, np.array([np.nan, -0.5, np.nan, np.nan], np.float32))


@pytest.mark.parametrize("logprobs", [[], [-1.0], [-1.0, -1.0, -1.0]])
def test_log_probs_must_be_as_many_as_tokens_and_a_refusal_changes_nothing(logprobs):
    builder = SegmentBuilder()
    builder.prompt([1])
    with pytest.raises(ValueError, match=f"2 tokens, {len(logprobs)} log-probs"):
        sampled(builder, [2, 3], logprobs)
    assert len(builder.build()) == 1


def test_messages_of_one_turn_share_a_span_that_the_first_one_holds():
    builder = SegmentBuilder()
    builder.prompt([1])
    builder.observed([2, 3], [RESULT, RESULT | {"content": "5"}], seconds=1.0)
    first, second = builder.build().turns
    assert (first.start, first.end, first.seconds) == (1, 3, 1.0)
    assert (second.start, second.end, second.seconds) == (3, 3, 0.0)


def test_what_comes_first_must_be_a_prompt_and_only_what_comes_first():
    with pytest.raises(ValueError, match="needs a prompt"):
        sampled(SegmentBuilder(), [1], [-1.0])
    with pytest.raises(ValueError, match="needs a prompt"):
        SegmentBuilder().observed([1], [RESULT])
    with pytest.raises(ValueError, match="has no tokens"):
        SegmentBuilder().prompt([])
    builder = SegmentBuilder()
    builder.prompt([1])
    with pytest.raises(ValueError, match="already has 1 tokens"):
        builder.prompt([1])


def test_a_built_segment_does_not_change_with_its_builder():
    builder = SegmentBuilder()
    builder.prompt([1])
    before = builder.build()
    sampled(builder, [2], [-1.0])
    assert (len(before), len(builder.build())) == (1, 2)


pieces = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2**31 - 1), max_size=5)), max_size=10)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), pieces)
def test_lengths_always_match_and_spans_tile_what_follows_the_prompt(prompt, pieces):
    builder = SegmentBuilder()
    builder.prompt(prompt)
    for is_sampled, ids in pieces:
        if is_sampled:
            sampled(builder, ids, [-0.5] * len(ids))
        else:
            builder.observed(ids, [RESULT])
    segment = builder.build()
    assert len(segment.token_ids) == len(segment.loss_mask) == len(segment.logprobs)
    assert segment.token_ids.tolist() == prompt + [token for _, ids in pieces for token in ids]
    assert [len(prompt), *(turn.end for turn in segment.turns)] == [
        *(turn.start for turn in segment.turns),
        len(segment),
    ]
    for turn in segment.turns:
        assert (segment.loss_mask[turn.start : turn.end] == turn.sampled).all()
    assert (np.isnan(segment.logprobs) == ~segment.loss_mask).all()
