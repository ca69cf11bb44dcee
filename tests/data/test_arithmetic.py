"""Generated word problems are right, distinct, stable, and never on both sides."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.configs import ArithmeticDataConfig
from agentfly_lib.data.arithmetic import generate, held_out, train_and_held_out
from agentfly_lib.errors import DataError


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**63), max_number=st.integers(9, 9999), two_step=st.sampled_from([0.0, 0.5, 1.0]))
def test_every_answer_is_what_the_numbers_and_operators_give(seed, max_number, two_step):
    for problem in generate(seed=seed, count=40, max_number=max_number, two_step_fraction=two_step):
        numbers, operators = problem.numbers, problem.operators
        expression = "".join(f"{number}{operator}" for number, operator in zip(numbers, (*operators, ""), strict=True))
        assert re.fullmatch(r"\d+[-+*]\d+([-+]\d+)?", expression)
        assert problem.answer == str(eval(expression))
        assert int(problem.answer) >= 0
        assert all(1 <= number <= max_number for number in numbers)
        assert [int(number) for number in re.findall(r"\d+", problem.question)] == list(numbers)
        if operators[0] == "*":
            assert numbers[1] <= 9


def test_questions_are_distinct_and_asking_for_more_keeps_the_first_ones():
    short = generate(seed=3, count=100, max_number=99)
    long = generate(seed=3, count=5000, max_number=99)
    assert long[:100] == short
    assert len({problem.question for problem in long}) == 5000


def test_seeds_differ():
    assert generate(seed=1, count=20, max_number=99) != generate(seed=2, count=20, max_number=99)


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0), (1.0, 1000)])
def test_the_fraction_of_two_step_problems(fraction, expected):
    problems = generate(seed=0, count=1000, max_number=99, two_step_fraction=fraction)
    assert sum(len(problem.operators) == 2 for problem in problems) == expected


def test_all_operators_and_kinds_come_up_about_equally():
    problems = generate(seed=0, count=3000, max_number=99)
    counts = {operator: sum(problem.operators == (operator,) for problem in problems) for operator in "+-*"}
    # A third each, standard deviation 26.
    assert all(850 < count < 1150 for count in counts.values())


def test_train_and_held_out_are_disjoint_and_more_training_data_keeps_the_evaluation():
    config = ArithmeticDataConfig(seed=5, train_problems=1000, eval_problems=50, two_step_fraction=0.3)
    train, evaluation = train_and_held_out(config)
    assert (len(train), len(evaluation)) == (1000, 50)
    assert not {problem.question for problem in train} & {problem.question for problem in evaluation}
    assert held_out(config) == evaluation
    assert held_out(config.model_copy(update={"train_problems": 2000})) == evaluation


def test_asking_for_more_than_there_are_is_an_error():
    with pytest.raises(DataError, match=r"distinct problems with numbers up to 9; raise data\.max_number"):
        generate(seed=0, count=10_000_000, max_number=9)
