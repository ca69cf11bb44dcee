"""Episodes that teach the small model that sees: pictures of a square, looked at or not, and answered rightly or not.

A demonstration is worded exactly as an agent's episode will be: the question, a call of `look`, the picture as a tool
message, the answer. Most of them are wrong, which is what reinforcement learning is to mend: one that
looks and says its favourite colour whatever it saw, and one that guesses without looking.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from agentfly_lib.configs.data import ColoursDataConfig
from agentfly_lib.data.colours import COLOURS, QUESTION, ColourProblem, generate, train_and_held_out
from agentfly_lib.errors import ModelError
from agentfly_lib.types import Message

__all__ = [
    "CALL",
    "HELD_OUT_DATA_SEEDS",
    "HELD_OUT_PROBLEMS",
    "Demonstration",
    "Kind",
    "demonstrate",
    "demonstrations",
    "vocabulary_corpus",
]

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
HELD_OUT_DATA_SEEDS = tuple(range(10))
"""Seeds of the generated data whose held-out pictures never appear in a demonstration."""
HELD_OUT_PROBLEMS = 512
"""How many of them, for each seed."""
_GENERATOR_SEED = 1_000_000_007
"""Far from any seed that a user gives to the data."""
_SPARE = 64
"""Pictures more than are needed, for those that a recipe may hold out: of the many that there are, hardly one."""
_FAVOURITE = "red"


class Kind(StrEnum):
    """How a demonstration goes."""

    RIGHT = "right"
    """Looks, and says what it saw."""
    FAVOURITE = "favourite"
    """Looks, and says `red` whatever it saw."""
    GUESS = "guess"
    """Names a colour without having looked."""


_MIX: Mapping[Kind, float] = MappingProxyType({Kind.RIGHT: 0.25, Kind.FAVOURITE: 0.5, Kind.GUESS: 0.25})


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One episode, as chat messages, and the picture that it shows, if it shows one."""

    kind: Kind
    messages: tuple[Message, ...]
    picture: bytes | None


def demonstrate(problem: ColourProblem, kind: Kind, choices: random.Random) -> Demonstration:
    """Act `problem` out in the way of `kind`; what is left open (which guess) comes from `choices`."""
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    answer = problem.answer
    if kind is Kind.GUESS:
        answer = choices.choice(list(COLOURS))
    else:
        messages.append({"role": "assistant", "content": CALL})
        messages.append({"role": "tool", "content": [{"type": "image"}, {"type": "text", "text": ""}]})
        if kind is Kind.FAVOURITE:
            answer = _FAVOURITE
    messages.append({"role": "assistant", "content": _answer(answer)})
    return Demonstration(kind=kind, messages=tuple(messages), picture=None if kind is Kind.GUESS else problem.picture)


def demonstrations(*, seed: int, count: int) -> list[Demonstration]:
    """`count` episodes on pictures that no recipe holds out; a pure function of the arguments.

    Raises `ModelError` if a seed gives too few of them.
    """
    choices = random.Random(seed)
    held_out = {
        problem.picture
        for data_seed in HELD_OUT_DATA_SEEDS
        for problem in train_and_held_out(
            ColoursDataConfig(seed=data_seed, train_problems=1, eval_problems=HELD_OUT_PROBLEMS)
        )[1]
    }
    fresh = [
        problem
        for problem in generate(seed=_GENERATOR_SEED + seed, count=count + _SPARE)
        if problem.picture not in held_out
    ]
    kinds, weights = list(_MIX), list(_MIX.values())
    if len(fresh) < count:
        raise ModelError(f"seed {seed} gives {count - len(fresh)} too few pictures that no recipe holds out")
    return [demonstrate(problem, choices.choices(kinds, weights)[0], choices) for problem in fresh[:count]]


def vocabulary_corpus() -> Iterator[str]:
    """Text that holds every word of the task, for training the tokenizer; the same every time."""
    for _ in range(4):
        yield from (QUESTION, CALL, "user assistant system\n", "\nlook()\n", "Error: there is no picture.")
        yield from map(_answer, COLOURS)


def _answer(colour: str) -> str:
    return f"The answer is {colour}"
