"""What Prefect's pages show of a run: its artifacts, under keys made from its name.

They are shown in the session's background: a server that is away costs its pages, and no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)

__all__ = ["Page"]


class Page:
    """Of one flow run. Use within it."""

    def __init__(self, run: str) -> None:
        """Take the run's name."""
        self._run = run
        self._progress: UUID | None = None

    async def steps_done(self, share: float) -> None:
        """A bar of the steps that are done, in percent."""
        if self._progress is None:
            key = _key(f"progress-{self._run}")
            self._progress = await acreate_progress_artifact(share, key=key, description="Steps done")
        else:
            await aupdate_progress_artifact(self._progress, share)

    async def evaluations(self, table: Sequence[dict[str, Any]]) -> None:
        """The table of all evaluations so far; it replaces the one before."""
        key = _key(f"evaluations-{self._run}")
        await acreate_table_artifact([*table], key=key, description=f"Held-out evaluation of {self._run}")

    async def evaluation(self, table: Sequence[dict[str, Any]], policy: str) -> None:
        """The table of a stand-alone evaluation."""
        await acreate_table_artifact([*table], key=_key(self._run), description=f"Evaluation of {policy}")

    async def report(self, markdown: str) -> None:
        """The report of the run."""
        key = _key(f"report-{self._run}")
        await acreate_markdown_artifact(markdown, key=key, description=f"Report of {self._run}")


def _key(text: str) -> str:
    """Prefect's artifact keys hold lower-case letters, digits and dashes."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).strip("-")
