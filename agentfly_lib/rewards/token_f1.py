"""How many words of the stated answer and of the right one agree: SQuAD's token F1, over the best of the right ones."""

from __future__ import annotations

from collections import Counter

from agentfly_lib.rewards.qa import accepted_answers, normalize_answer, stated_answer
from agentfly_lib.rewards.reward import reward

__all__ = ["token_f1"]


@reward(inline=True)
def token_f1(final_response: str, answer: object) -> float | None:
    """The column `answer` holds one right answer or a list of them; None where it holds none."""
    accepted = accepted_answers(answer)
    if not accepted:
        return None
    given = normalize_answer(stated_answer(final_response)).split()
    return max(_f1(given, normalize_answer(right).split()) for right in accepted)


def _f1(given: list[str], right: list[str]) -> float:
    if not given or not right:  # nothing agrees with nothing only (SQuAD 2.0)
        return float(given == right)
    common = sum((Counter(given) & Counter(right)).values())
    return 2 * common / (len(given) + len(right))
