"""Search (Search-R1, Jin et al. 2025, arXiv 2503.09516): answer a question with the help of an index over a corpus.

The index is a service that all trajectories share; the tool `web_search` can use the same one. See
`docs/environments/search.md`.
"""

from __future__ import annotations

from agentfly_lib.envs.environment import EnvironmentKind
from agentfly_lib.envs.search.episode import Search
from agentfly_lib.envs.search.questions import problems
from agentfly_lib.envs.search.service import IndexClient, IndexService, IndexSpec, shared_service
from agentfly_lib.envs.search.settings import (
    Bm25Config,
    DenseConfig,
    GeneratedCorpus,
    IndexConfig,
    SearchSettings,
    check,
)

__all__ = [
    "KIND",
    "Bm25Config",
    "DenseConfig",
    "GeneratedCorpus",
    "IndexClient",
    "IndexConfig",
    "IndexService",
    "IndexSpec",
    "Search",
    "SearchSettings",
    "shared_service",
]

PROMPT = """\
Answer the question. Think about what you need to know, and search for it; you may search several times, and what you \
find may tell you what to search for next. When you know the answer, give it: the answer alone, in as few words as \
possible."""


def search(query: str) -> str:
    """Search the documents. The best ones are shown.

    Args:
        query: What to look for, in a few words.
    """
    return f"search[{query}]"


def answer(answer: str) -> str:
    """Give the final answer. Nothing can be done after this.

    Args:
        answer: The answer alone, without an explanation.
    """
    return f"answer[{answer}]"


KIND = EnvironmentKind(
    name="search",
    make=Search,
    settings=SearchSettings,
    actions=(search, answer),
    problems=problems,
    prompt=PROMPT,
    place="thread",
    first_observation=False,
    check=check,
    start_seconds=lambda settings: settings.index.start_seconds + 30.0,
    step_seconds=lambda settings: settings.index.timeout_seconds + 90.0,  # a search may find that its index is dead
    packages=("bm25s", "PyStemmer"),
)
