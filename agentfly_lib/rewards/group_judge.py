"""A language model ranks the chains of one problem against each other: for tasks without a right answer.

Rewards are places: the best response gets 1, the last 0, those between are spread evenly. Equal responses share their
place's reward. Responses are shown in an order that depends on their texts alone, so no chain gains by its number.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.group_reward import GroupReward
from agentfly_lib.rewards.judge import Unusable, make_judge, question_of, quoted
from agentfly_lib.types import Problem

__all__ = ["RANKING_RUBRIC", "group_judge"]

RANKING_RUBRIC = "Compare the responses to the question: which is more correct, more complete, more to the point?"


@reward_factory
def group_judge(
    *,
    base_url: str,
    model: str,
    rubric: str = RANKING_RUBRIC,
    cache: Path | Literal["none"] | None = None,
    structured: bool = True,
    timeout_seconds: PositiveFloat = 180.0,
    retries: Annotated[int, Field(ge=0)] = 2,
    outage_retries: Annotated[int, Field(ge=0)] = 4,
    backoff_seconds: PositiveFloat = 0.5,
    max_concurrency: PositiveInt = 16,
    max_tokens: PositiveInt = 2048,
    api_key_env: str = "OPENAI_API_KEY",
    name: str = "group_judge",
) -> GroupReward:
    """Settings are those of `llm_judge`. A group with one chain cannot be ranked; one whose responses are all equal
    gets 0.5 throughout, without asking.
    """
    judge = make_judge(
        base_url=base_url,
        model=model,
        cache=cache,
        structured=structured,
        retries=retries,
        outage_retries=outage_retries,
        backoff_seconds=backoff_seconds,
        max_concurrency=max_concurrency,
        max_tokens=max_tokens,
        api_key_env=api_key_env,
    )

    async def ranked(final_responses: list[str], problem: Problem) -> list[float | None]:
        if len(final_responses) < 2:
            return [None] * len(final_responses)
        texts = sorted(set(final_responses), key=_shuffled)
        if len(texts) == 1:
            return [0.5] * len(final_responses)
        pieces = [f"Question:\n{quoted('question', question_of(problem))}"]
        pieces += [f"Response {number}:\n{quoted('response', text)}" for number, text in enumerate(texts, 1)]
        ranking = await judge.ask(
            f"{rubric}\n\nRank the {len(texts)} responses by number, the best first. First your reason, briefly.",
            "\n\n".join(pieces),
            schema=_schema(len(texts)),
            read=lambda answer: _ranking(answer, len(texts)),
            seconds=timeout_seconds,
        )
        worth = {texts[number - 1]: 1 - place / (len(texts) - 1) for place, number in enumerate(ranking)}
        return [worth[text] for text in final_responses]

    return GroupReward(name=name, function=ranked, timeout=timeout_seconds, retries=0, max_concurrency=max_concurrency)


def _shuffled(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _schema(count: int) -> dict[str, Any]:
    number = {"type": "integer", "minimum": 1, "maximum": count}
    return {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "ranking": {"type": "array", "items": number, "minItems": count, "maxItems": count},
        },
        "required": ["reason", "ranking"],
        "additionalProperties": False,
    }


def _ranking(answer: dict[str, Any], count: int) -> list[int]:
    ranking = answer.get("ranking")
    if answer.keys() != {"reason", "ranking"} or not isinstance(answer["reason"], str):
        raise Unusable(f"expected the keys reason and ranking, got {', '.join(map(str, answer)) or 'none'}")
    numbers = ranking if isinstance(ranking, list) and all(type(item) is int for item in ranking) else []
    if sorted(numbers) != list(range(1, count + 1)):
        raise Unusable(f"ranking is {ranking!r}, expected each number from 1 to {count} once")
    return numbers
