"""A language model scores the response by a rubric, behind any OpenAI-compatible server; also pictures, if it sees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentfly_lib.chat.images import load_picture
from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.judge import Unusable, make_judge, question_of, quoted, text_of
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.types import Problem, Trajectory

__all__ = ["RUBRIC", "llm_judge"]

MAX_PICTURES = 16
"""That a judge is shown; of more, the last."""
RUBRIC = (
    "Judge whether the response answers the question correctly, completely and to the point. If a reference answer is "
    "given, a response that contradicts it is wrong, however well it is argued."
)


@reward_factory
def llm_judge(
    *,
    base_url: str,
    model: str,
    rubric: str = RUBRIC,
    scale: Annotated[int, Field(ge=1)] = 10,
    show: Literal["final", "transcript"] = "final",
    pictures: Literal["none", "problem", "all"] = "none",
    reference: str = "answer",
    cache: Path | Literal["none"] | None = None,
    structured: bool = True,
    timeout_seconds: PositiveFloat = 120.0,
    retries: Annotated[int, Field(ge=0)] = 2,
    outage_retries: Annotated[int, Field(ge=0)] = 4,
    backoff_seconds: PositiveFloat = 0.5,
    max_concurrency: PositiveInt = 16,
    max_tokens: PositiveInt = 1024,
    api_key_env: str = "OPENAI_API_KEY",
    name: str = "llm_judge",
) -> Reward:
    """The judge's score, 0 to `scale`, as a number from 0 to 1.

    show: the final response alone, or the whole conversation with its tool calls and results.
    pictures: what a judge that sees is shown below the texts: none, the problem's own, or also those that the policy
        saw on its way (screens, results of tools).
    reference: column with the right answer, shown if the problem has it; `none` shows none.
    cache: folder of kept verdicts; the user's cache directory if unset; `none` keeps none.
    structured: constrain the answer to the schema; False for servers that cannot.
    retries: tries after the first for an answer that is not the JSON that was asked for. outage_retries: the same for a
        server that is down. A judgement that is not had in the end, or within `timeout_seconds`, drops the trajectory.
    api_key_env: environment variable with the key.
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
    instructions = f"{rubric}\n\nGive a score from 0 (worst) to {scale} (best). First your reason, briefly."
    schema = {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "score": {"type": "integer", "minimum": 0, "maximum": scale},
        },
        "required": ["reason", "score"],
        "additionalProperties": False,
    }

    def read(answer: dict[str, Any]) -> float:
        score = answer.get("score")
        if answer.keys() != {"reason", "score"} or not isinstance(answer["reason"], str):
            raise Unusable(f"expected the keys reason and score, got {', '.join(map(str, answer)) or 'none'}")
        if isinstance(score, bool) or not isinstance(score, int) or not 0 <= score <= scale:
            raise Unusable(f"score is {score!r}, expected a whole number from 0 to {scale}")
        return score / scale

    async def judged(trajectory: Trajectory, problem: Problem) -> float:
        pieces = [f"Question:\n{quoted('question', question_of(problem))}"]
        if reference != "none" and problem.columns.get(reference) is not None:
            pieces.append(f"Reference answer:\n{quoted('reference', str(problem.columns[reference]))}")
        text = trajectory.final_response if show == "final" else _transcript(trajectory)
        pieces.append(f"Response to judge:\n{quoted('response', text)}")
        material = "\n\n".join(pieces)
        seen = () if pictures == "none" else _pictures(problem, trajectory if pictures == "all" else None)
        return await judge.ask(instructions, material, schema=schema, read=read, seconds=timeout_seconds, pictures=seen)

    return Reward(
        name=name,
        function=judged,
        timeout=timeout_seconds,
        retries=0,  # the judge has its own
        max_concurrency=max_concurrency,
    )


def _pictures(problem: Problem, trajectory: Trajectory | None) -> list[bytes]:
    sources: list[Any] = []
    for name in ("image", "images"):
        value = problem.columns.get(name)
        sources += value if isinstance(value, list | tuple) else [] if value is None else [value]
    for message in problem.messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else ()
        sources += [part["image"] for part in parts if part.get("type") == "image" and "image" in part]
    found = {picture.digest: picture.data for picture in map(load_picture, sources)}
    if trajectory is not None:
        found |= trajectory.pictures
    return list(found.values())[-MAX_PICTURES:]


def _transcript(trajectory: Trajectory) -> str:
    return "\n\n".join(f"[{message.get('role')}]\n{text_of(message)}" for message in trajectory.messages)
