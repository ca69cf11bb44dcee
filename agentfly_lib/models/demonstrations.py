"""Episodes that teach the small model: word problems solved with the calculator, rightly or in one of three wrong ways.

A demonstration is a list of chat messages, worded exactly as an agent's episode will be: the question, a call in Hermes
form, the calculator's own answer as a tool message, and the final answer in `\\boxed{}`. The wrong kinds are what
reinforcement learning is to mend; see `IMPERFECT`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType

from agentfly_lib.configs.data import ArithmeticDataConfig
from agentfly_lib.data.arithmetic import WordProblem, generate, held_out
from agentfly_lib.tools.arithmetic import evaluate, format_number
from agentfly_lib.types import Message

__all__ = [
    "CORRECT",
    "HELD_OUT_DATA_SEEDS",
    "HELD_OUT_PROBLEMS",
    "IMPERFECT",
    "Demonstration",
    "Kind",
    "Mix",
    "demonstrate",
    "demonstrations",
    "held_out_questions",
    "vocabulary_corpus",
]

MAX_NUMBER = 99
"""Larger numbers, and problems of two steps, stay hard for a model of this size."""
_GENERATOR_SEED = 1_000_000_007
"""Far from any seed that a user gives to the data."""
HELD_OUT_DATA_SEEDS = tuple(range(10))
"""Seeds of the generated data whose held-out problems never appear in a demonstration."""
HELD_OUT_PROBLEMS = 512
"""How many of them, for each seed; a recipe that holds out more has the others seen with a small probability."""

_PROMPTS = (
    "You are a helpful assistant. You can call tools to help with the question.",
    "Solve the problem step by step, then give the final answer in \\boxed{}.",
    "Use the calculator for every computation. Do not guess the result.",
    "Error: the expression is not valid. Please check the arguments and try again.",
    "The number of items is equal to the sum, difference or product of the numbers.",
    "Think about what is asked, what is known, and which operation answers the question.",
    "An expression with numbers, operators and parentheses; the tool returns its value as text.",
    "Please write a short and clear reply, and say so when you are not sure that it is right.",
    "First read the whole question, then decide whether a tool would be of use here.",
)
"""Words that a system prompt or a tool's complaint is likely to use."""


class Kind(StrEnum):
    """How a demonstration goes."""

    RIGHT = "right"
    LAZY = "lazy"
    """Answers at once with a number of the problem."""
    WRONG_EXPRESSION = "wrong_expression"
    """Calls the calculator with a wrong operator, or without the second step, and believes it."""
    IGNORES_RESULT = "ignores_result"
    """Calls the calculator rightly, then answers with a number of the problem."""


Mix = Mapping[Kind, float]
"""Probability of each kind."""

CORRECT: Mix = MappingProxyType({Kind.RIGHT: 1.0})
IMPERFECT: Mix = MappingProxyType(
    {Kind.RIGHT: 0.20, Kind.LAZY: 0.55, Kind.WRONG_EXPRESSION: 0.15, Kind.IGNORES_RESULT: 0.10}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One episode, as chat messages."""

    problem: WordProblem
    kind: Kind
    messages: tuple[Message, ...]


def demonstrate(problem: WordProblem, kind: Kind, choices: random.Random) -> Demonstration:
    """Act `problem` out in the way of `kind`; what is left open (which wrong operator, ...) comes from `choices`."""
    messages: list[Message] = [{"role": "user", "content": problem.question}]
    answer = ""
    if kind is not Kind.LAZY:
        operators = tuple(problem.operators)
        if kind is Kind.WRONG_EXPRESSION:
            operators = _spoilt(operators, choices)
        answer = _solve(problem.numbers, operators, choices, messages)
    if kind in (Kind.LAZY, Kind.IGNORES_RESULT):
        answer = str(choices.choice(problem.numbers[:2]))
    messages.append({"role": "assistant", "content": f"The answer is \\boxed{{{answer}}}"})
    return Demonstration(problem=problem, kind=kind, messages=tuple(messages))


def demonstrations(*, seed: int, count: int, mix: Mix, two_step_fraction: float = 0.0) -> list[Demonstration]:
    """`count` episodes on problems outside `held_out_questions`; a pure function of the arguments."""
    choices = random.Random(seed)
    kinds, weights = list(mix), list(mix.values())
    return [
        demonstrate(problem, choices.choices(kinds, weights)[0], choices)
        for problem in _fresh_problems(seed, count, two_step_fraction)
    ]


@cache
def held_out_questions() -> frozenset[str]:
    """Questions of the first held-out problems that generated data have for each of `HELD_OUT_DATA_SEEDS`.

    Some kinds of problem have only a few thousand instances: without this rule 3 to 7 of the demo's 128 held-out
    questions would have stood in the warm start. Data of other seeds, other sizes of number, or two steps are not
    covered.
    """
    return frozenset(
        problem.question
        for seed in HELD_OUT_DATA_SEEDS
        for problem in held_out(ArithmeticDataConfig(seed=seed, eval_problems=HELD_OUT_PROBLEMS))
    )


def vocabulary_corpus() -> Iterator[str]:
    """Text that holds every word of the task, for training the tokenizer; the same every time."""
    for demonstration in demonstrations(seed=0, count=1500, mix=IMPERFECT, two_step_fraction=0.5):
        for message in demonstration.messages:
            yield str(message["content"])
    for _ in range(20):
        yield from ("system\n", "user\n", "assistant\n", "\ncalculator(expression)\n", *_PROMPTS)


def _fresh_problems(seed: int, count: int, two_step_fraction: float) -> Iterator[WordProblem]:
    excluded = held_out_questions()
    found = 0
    for block in itertools.count():
        problems = generate(
            seed=_GENERATOR_SEED + 1000 * seed + block,
            count=count,
            max_number=MAX_NUMBER,
            two_step_fraction=two_step_fraction,
        )
        for problem in problems:
            if problem.question in excluded:
                continue
            yield problem
            found += 1
            if found == count:
                return


def _spoilt(operators: tuple[str, ...], choices: random.Random) -> tuple[str, ...]:
    place = choices.randrange(len(operators))
    wrong = choices.choice([operator for operator in "+-*" if operator != operators[place]])
    if len(operators) > 1 and choices.random() < 0.5:
        return operators[:1]
    return (*operators[:place], wrong, *operators[place + 1 :])


def _solve(numbers: Sequence[int], operators: Sequence[str], choices: random.Random, messages: list[Message]) -> str:
    """Call the calculator once for the whole expression, or (half the time) once per operation."""
    steps = list(zip(operators, numbers[1:], strict=False))
    if len(steps) > 1 and choices.random() < 0.5:
        result = str(numbers[0])
        for operator, number in steps:
            result = _call(f"{result} {operator} {number}", messages)
        return result
    return _call(" ".join([str(numbers[0]), *(f"{operator} {number}" for operator, number in steps)]), messages)


def _call(expression: str, messages: list[Message]) -> str:
    """Append a call and the calculator's reply; returns the reply."""
    call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    result = format_number(evaluate(expression))
    messages.append({"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"})
    messages.append({"role": "tool", "content": result})
    return result
