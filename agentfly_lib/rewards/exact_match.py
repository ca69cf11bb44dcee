"""1 if the stated answer is one of the right ones, SQuAD's normalisation applied to both, else 0."""

from __future__ import annotations

from agentfly_lib.envs.search import scoring
from agentfly_lib.rewards.qa import accepted_answers, stated_answer
from agentfly_lib.rewards.reward import reward

__all__ = ["exact_match"]


@reward(inline=True)
def exact_match(final_response: str, answer: object) -> float | None:
    """The column `answer` holds one right answer or a list of them; None where it holds none."""
    accepted = accepted_answers(answer)
    return scoring.exact_match(stated_answer(final_response), accepted) if accepted else None
