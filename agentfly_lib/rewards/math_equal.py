"""1 if the final answer equals the right one, else 0: for GSM8K, MATH and the arithmetic that we generate."""

from __future__ import annotations

from collections.abc import Awaitable

from agentfly_lib.rewards.answers import equal_answers, extract_answer, reference_answer
from agentfly_lib.rewards.reward import reward

__all__ = ["math_equal"]

SYMBOLIC_SECONDS = 10.0
"""Limit of one symbolic comparison."""


@reward(inline=True)
def math_equal(final_response: str, answer: object) -> float | Awaitable[float]:
    """Compares the answer that a response states with the column `answer`.

    Numbers are decided at once (see `rewards.answers`); what needs algebra comes as an awaitable that a worker process
    answers, and that fails if the comparison does not end in time.
    """
    given, wanted = extract_answer(final_response), reference_answer(answer)
    equal = equal_answers(given, wanted)
    if equal is None and given is not None:
        return _symbolic(given, wanted)
    return float(bool(equal))


async def _symbolic(given: str, wanted: str) -> float:
    from agentfly_lib.rewards.call import call_in_worker

    keywords = {"given": given, "reference": wanted}
    target = "agentfly_lib.rewards.symbolic:symbolic_equal"
    return float(await call_in_worker(target, keywords, seconds=SYMBOLIC_SECONDS))
