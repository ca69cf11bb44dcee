"""How many words of the stated answer and of the right one agree: SQuAD's token F1, over the best of the right ones."""

from __future__ import annotations

from agentfly_lib.envs.search import scoring
from agentfly_lib.rewards.qa import accepted_answers, stated_answer
from agentfly_lib.rewards.reward import reward

__all__ = ["token_f1"]


@reward(inline=True)
def token_f1(final_response: str, answer: object) -> float | None:
    """The column `answer` holds one right answer or a list of them; None where it holds none."""
    accepted = accepted_answers(answer)
    return scoring.token_f1(stated_answer(final_response), accepted) if accepted else None
