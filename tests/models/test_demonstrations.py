"""Demonstrations: what the small model is shown, rightly and wrongly, and what it must not have seen."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest

from agentfly_lib.configs.data import ArithmeticDataConfig
from agentfly_lib.data.arithmetic import WordProblem, held_out
from agentfly_lib.models.demonstrations import (
    CORRECT,
    IMPERFECT,
    Kind,
    demonstrate,
    demonstrations,
    held_out_questions,
)

BOXES = WordProblem(question="7 boxes with 5 eggs each?", answer="35", numbers=(7, 5), operators=("*",))
TWO_STEPS = WordProblem(question="7 boxes of 5, minus 2?", answer="33", numbers=(7, 5, 2), operators=("*", "-"))


def boxed(content: str) -> str:
    (answer,) = re.findall(r"\\boxed\{(.*)\}", content)
    return answer


def test_a_right_one_word_for_word():
    demonstration = demonstrate(BOXES, Kind.RIGHT, random.Random(0))

    assert demonstration.messages == (
        {"role": "user", "content": "7 boxes with 5 eggs each?"},
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "calculator", "arguments": {"expression": "7 * 5"}}\n</tool_call>',
        },
        {"role": "tool", "content": "35"},
        {"role": "assistant", "content": "The answer is \\boxed{35}"},
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_lazy_one_answers_at_once_with_a_number_of_the_problem(seed: int):
    messages = demonstrate(BOXES, Kind.LAZY, random.Random(seed)).messages

    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert boxed(messages[-1]["content"]) in {"7", "5"}


@pytest.mark.parametrize("seed", range(10))
def test_a_wrong_expression_is_calculated_and_believed(seed: int):
    messages = demonstrate(BOXES, Kind.WRONG_EXPRESSION, random.Random(seed)).messages

    assert messages[2]["content"] in {"12", "2"}
    assert boxed(messages[3]["content"]) == messages[2]["content"]


@pytest.mark.parametrize("seed", range(10))
def test_one_that_ignores_the_result_calculates_rightly(seed: int):
    messages = demonstrate(BOXES, Kind.IGNORES_RESULT, random.Random(seed)).messages

    assert messages[2]["content"] == "35"
    assert boxed(messages[3]["content"]) in {"7", "5"}


def test_two_steps_are_one_call_or_one_call_each():
    seen: set[tuple[str, ...]] = set()
    for seed in range(20):
        messages = demonstrate(TWO_STEPS, Kind.RIGHT, random.Random(seed)).messages
        calls = [re.findall(r"\{.*\}", message["content"])[0] for message in messages[1:-1:2]]
        seen.add(tuple(json.loads(call)["arguments"]["expression"] for call in calls))
        assert boxed(messages[-1]["content"]) == "33"

    assert seen == {("7 * 5 - 2",), ("7 * 5", "35 - 2")}


def test_every_right_one_has_the_problem_s_own_answer():
    for demonstration in demonstrations(seed=3, count=500, mix=CORRECT, two_step_fraction=0.5):
        assert boxed(demonstration.messages[-1]["content"]) == demonstration.problem.answer


def test_the_imperfect_mix_has_its_proportions():
    count = 4000
    kinds = Counter(demonstration.kind for demonstration in demonstrations(seed=3, count=count, mix=IMPERFECT))

    # Within four standard errors of a proportion, 4 * sqrt(.25 / 4000) = .032
    shares = {kind: kinds[kind] / count for kind in Kind}
    expected = {Kind.RIGHT: 0.20, Kind.LAZY: 0.55, Kind.WRONG_EXPRESSION: 0.15, Kind.IGNORES_RESULT: 0.10}
    assert shares == pytest.approx(expected, abs=0.032)


def test_demonstrations_are_a_function_of_the_seed():
    first, again, other = (demonstrations(seed=seed, count=20, mix=IMPERFECT) for seed in (1, 1, 2))

    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("data_seed", [0, 1, 9])
def test_no_held_out_question_of_the_demo_s_data_is_in_the_warm_start(seed: int, data_seed: int):
    held = {problem.question for problem in held_out(ArithmeticDataConfig(seed=data_seed))}
    correct = demonstrations(seed=2 * seed + 1, count=6400, mix=CORRECT)
    imperfect = demonstrations(seed=2 * seed + 2, count=640, mix=IMPERFECT)

    seen = {demonstration.problem.question for demonstration in [*correct, *imperfect]}

    assert len(held) == 128
    assert held <= held_out_questions()
    assert not held & seen
