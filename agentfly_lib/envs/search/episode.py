"""A question, an index to search, and an answer that is compared with the right one: the episode of Search-R1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentfly_lib.envs.environment import StepResult
from agentfly_lib.envs.search.corpus import Document
from agentfly_lib.envs.search.scoring import exact_match, token_f1
from agentfly_lib.envs.search.service import shared_service
from agentfly_lib.envs.search.settings import SearchSettings

__all__ = ["MAX_ARGUMENT", "Search"]

MAX_ARGUMENT = 1000
"""Longest query or answer, in characters."""
_ACTION = re.compile(r"\s*(search|answer)\[(.*)\]\s*", re.DOTALL)


class Search:
    """Answers one question. Takes the settings of `SearchSettings`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = SearchSettings.model_validate(settings)
        self._service = shared_service(self._settings.index)
        self._service.start()
        self._accepted: tuple[str, ...] | None = None
        self._done = False

    def reset(self, problem: Mapping[str, Any]) -> str:
        """Begins with the column `answer`, a text or several; gives back the column `question`, if there is one."""
        answers = problem["answer"]
        self._accepted = (answers,) if isinstance(answers, str) else tuple(map(str, answers))
        self._done = False
        return str(problem.get("question", ""))

    def step(self, action: str) -> StepResult:
        """Does `search[query]` or `answer[text]`; the answer ends the episode."""
        if self._accepted is None or self._done:
            why = "The question is answered." if self._done else "There is no question yet."
            return StepResult.refused(why, done=self._done)
        match = _ACTION.fullmatch(action) if len(action) <= MAX_ARGUMENT + 20 else None
        if match is None or not match[2].strip():
            why = f"This is no action. Write search[query] or answer[text], at most {MAX_ARGUMENT} characters."
            return StepResult.refused(why)
        if match[1] == "search":
            (hits,) = self._service.search([match[2]], self._settings.results)
            return StepResult(observation=self._shown(hits), info={"documents": [hit.id for hit in hits]})
        self._done = True
        score = exact_match if self._settings.reward == "exact_match" else token_f1
        given = match[2].strip()
        return StepResult(observation="Answered.", reward=score(given, self._accepted), done=True)

    def close(self) -> None:
        """Nothing is held: the index is everybody's."""

    def _shown(self, hits: Sequence[Document]) -> str:
        return "\n\n".join(self._document(n, hit) for n, hit in enumerate(hits, 1)) or "(nothing was found)"

    def _document(self, number: int, document: Document) -> str:
        text, most = document.text.strip(), self._settings.max_document_chars
        cut = f"{text[:most]}[...]" if len(text) > most else text
        return f"[{number}] {document.title}\n{cut}" if document.title else f"[{number}] {cut}"
