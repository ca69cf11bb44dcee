"""How alike the stated answer and the right one are, letter by letter: ANLS, for text that is read in a picture.

1 minus the edit distance divided by the length of the longer text, and 0 below one half, over the best of the right
answers (Biten et al. 2019, arXiv 1905.13648, Eq. 1). Case and outer white space do not count.
"""

from __future__ import annotations

from agentfly_lib.rewards.qa import accepted_answers, stated_answer
from agentfly_lib.rewards.reward import reward

__all__ = ["anls", "similarity"]

_THRESHOLD = 0.5
_MAX_CHARS = 512
"""Of a stated answer; a longer one is no answer that is read off, and would take its time."""


@reward
def anls(final_response: str, answer: object) -> float | None:
    """The column `answer` holds one right answer or a list of them; None where it holds none."""
    accepted = accepted_answers(answer)
    given = _plain(stated_answer(final_response))
    return max((similarity(given, _plain(right)) for right in accepted), default=None)


def similarity(given: str, right: str) -> float:
    """ANLS of two texts, from 0 to 1."""
    longer = max(len(given), len(right))
    if not longer:
        return 1.0
    if len(given) > _MAX_CHARS or len(right) > _MAX_CHARS:
        return float(given == right)
    found = 1 - _distance(given, right) / longer
    return found if found >= _THRESHOLD else 0.0


def _distance(one: str, other: str) -> int:
    """Levenshtein's."""
    row = list(range(len(other) + 1))
    for index, character in enumerate(one, start=1):
        before, row[0] = row[0], index
        for place, against in enumerate(other, start=1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (character != against)),
            )
    return row[-1]


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
