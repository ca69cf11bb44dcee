"""Agreement with several people's answers to a question about a picture: VQA's accuracy.

The mean over each choice of all people but one of min(1, how many of them gave the answer / 3) (Antol et al. 2015,
arXiv 1505.00468, and its evaluation). With fewer than three answers, any of them is right.
"""

from __future__ import annotations

from agentfly_lib.envs.search.scoring import normalize_answer
from agentfly_lib.rewards.qa import accepted_answers, stated_answer
from agentfly_lib.rewards.reward import reward

__all__ = ["vqa_accuracy"]


@reward(inline=True)
def vqa_accuracy(final_response: str, answer: object) -> float | None:
    """The column `answer` holds the people's answers, as a list; None where it holds none."""
    people = [normalize_answer(each) for each in accepted_answers(answer)]
    if not people:
        return None
    given = normalize_answer(stated_answer(final_response))
    agreeing = people.count(given)
    if len(people) < 3:
        return float(agreeing > 0)
    without_one_that_agrees = min(1.0, (agreeing - 1) / 3) * agreeing
    without_another = min(1.0, agreeing / 3) * (len(people) - agreeing)
    return (without_one_that_agrees + without_another) / len(people)
