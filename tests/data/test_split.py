"""A seeded split, and no problem on both sides."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.data.split import hold_out, separate, shuffled_order, take
from agentfly_lib.data.validate import SourcedProblem
from agentfly_lib.types import Problem


def rows(file, *questions, **columns):
    return [
        SourcedProblem(
            problem=Problem(id=f"{file}{number}", messages=({"role": "user", "content": question},), columns=columns),
            where=f"{file} line {number}",
        )
        for number, question in enumerate(questions, start=1)
    ]


def game(file, *levels):
    return [
        SourcedProblem(
            problem=Problem(
                id=f"{file}{number}",
                messages=({"role": "user", "content": "Play."},),
                columns={"level": level, "id": f"{file}{number}"},
            ),
            where=f"{file} line {number}",
        )
        for number, level in enumerate(levels, start=1)
    ]


@given(count=st.integers(0, 200), seed=st.integers())
def test_an_order_is_a_permutation_and_a_pure_function(count, seed):
    order = shuffled_order(count, seed)
    assert sorted(order) == list(range(count))
    assert order == shuffled_order(count, seed)


def test_the_order_is_the_same_on_every_machine():
    # Python promises that random() gives the same numbers for a seed, which it does not for shuffle() and sample().
    draws = random.Random("0")
    keys = [draws.random() for _ in range(5)]
    assert shuffled_order(5, 0) == sorted(range(5), key=lambda index: keys[index])


@given(count=st.integers(2, 60), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 9))
def test_holding_out_splits_without_loss(count, fraction, seed):
    train, held = hold_out(range(count), fraction, seed)
    assert sorted([*train, *held]) == list(range(count))
    assert train == sorted(train)
    assert abs(len(held) - fraction * count) <= 1
    assert train
    assert held


def test_another_seed_holds_out_other_rows():
    assert hold_out(range(100), 0.2, 0)[1] != hold_out(range(100), 0.2, 1)[1]


def test_taking_some():
    assert take("abc", None, 0) == list("abc")
    assert take("abc", 3, 0) == list("abc")
    assert take(range(50), 5, 1) == take(range(50), 10, 1)[:5]
    assert len(set(take(range(50), 10, 1))) == 10


class TestSeparate:
    def test_what_is_held_out_leaves_training_whatever_its_free_columns_and_spaces(self):
        train = rows("t", "one", "two", "three", solution="a")
        split = separate(train, rows("e", "four", " two\n ", solution="b"))
        assert [row.where for row in split.train] == ["t line 1", "t line 3"]
        assert [(each.other, each.kept) for each in split.leaked] == [("t line 2", "e line 2")]
        assert split.compared == "conversation"

    def test_repeats_in_training_are_reported_and_stay(self):
        split = separate(rows("t", "one", "two", "one"), rows("e", "four"))
        assert len(split.train) == 3
        assert [(each.other, each.kept) for each in split.repeated] == [("t line 3", "t line 1")]

    def test_games_that_share_one_conversation_are_told_apart_by_their_columns(self):
        split = separate(game("t", 1, 2, 3, 4), game("e", 5, 2))
        assert split.compared == "whole row"
        assert [row.problem.columns["level"] for row in split.train] == [1, 3, 4]

    def test_letters_of_another_case_are_another_question(self):
        assert separate(rows("t", "us"), rows("e", "US")).leaked == []


@pytest.mark.parametrize("seed", [0, 1])
def test_the_split_does_not_depend_on_anything_but_seed_and_count(seed):
    assert hold_out("abcdefghij", 0.3, seed)[1] == ["abcdefghij"[index] for index in hold_out(range(10), 0.3, seed)[1]]
