"""1 if the final answer equals the right one, else 0: for GSM8K, MATH and the arithmetic that we generate."""

from __future__ import annotations

from collections.abc import Awaitable

from agentfly_lib.rewards.answers import equal_answers, extract_answer, reference_answer
from agentfly_lib.rewards.call import JudgedInWorker
from agentfly_lib.rewards.reward import reward

__all__ = ["math_equal"]

SYMBOLIC_SECONDS = 10.0
"""Limit of one symbolic comparison."""
_SYMBOLIC = "agentfly_lib.rewards.symbolic:symbolic_equal"


@reward(inline=True)
def math_equal(final_response: str, answer: object) -> float | Awaitable[float]:
    """Compares the answer that a response states with the column `answer`.

    Numbers are decided at once (see `rewards.answers`); what needs algebra comes as an awaitable that a worker process
    answers. An answer that takes more time or memory to compare than there is is worth 0.
    """
    given, wanted = extract_answer(final_response), reference_answer(answer)
    equal = equal_answers(given, wanted)
    if equal is None and given is not None:
        keywords = {"given": given, "reference": wanted}
        return JudgedInWorker(target=_SYMBOLIC, keywords=keywords, seconds=SYMBOLIC_SECONDS)
    return float(bool(equal))
