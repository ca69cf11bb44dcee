"""One HTML file that shows trajectories without a server, a network or a script; pictures lie in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentfly_lib.errors import AgentFlyError
from agentfly_lib.evaluation.report import read_report
from agentfly_lib.evaluation.table import report_table
from agentfly_lib.viewer.web.catalog import Row
from agentfly_lib.viewer.web.charts import reward_chart
from agentfly_lib.viewer.web.export import Chosen, chosen, sample
from agentfly_lib.viewer.web.pages import pages_environment, question_of, run_tiles
from agentfly_lib.viewer.web.pictures import data_url
from agentfly_lib.viewer.web.shelf import Shelf
from agentfly_lib.viewer.web.spans import COLOURS, PictureLink, view_of

__all__ = ["run_html", "selection_html"]

_MOST_BYTES = 12 << 20
"""Of the trajectories in one file; those beyond it are left out, and the page says so."""
_MOST_PICTURE_BYTES = 8 << 20
_MOST_FIGURE_BYTES = 1 << 20


def selection_html(shelf: Shelf, rows: Sequence[Row], *, colour: str = "mask") -> tuple[str, int]:
    """Some trajectories of a run, and how many of them the file shows."""
    return _page(shelf, list(chosen(shelf, rows)), f"{shelf.name}: trajectories", colour, whole=False)


def run_html(shelf: Shelf, *, count: int = 24, colour: str = "mask") -> tuple[str, int]:
    """A run at a glance: what it reached, its charts, and a sample of at most `count` trajectories; and how many those
    are."""
    rows, reasons = sample(shelf, count)
    return _page(shelf, list(chosen(shelf, rows, reasons=reasons)), shelf.name, colour, whole=True)


def _page(shelf: Shelf, trajectories: Sequence[Chosen], title: str, colour: str, *, whole: bool) -> tuple[str, int]:
    link = _embedding()
    shown: list[dict[str, Any]] = []
    size = 0
    for each in trajectories:
        view = view_of(
            each.trajectory,
            each.group,
            chat=shelf.chat,
            knowledge=each.knowledge,
            newest=each.row.step,
            link=link,
        )
        spans = [span for turns in view.segments for turn in turns for span in turn.spans]
        size += sum(len(span.text) + len(span.title) + 60 for span in spans)
        if shown and size > _MOST_BYTES:
            break
        shown.append(
            {
                "view": view,
                "question": question_of(each.problem),
                "step": each.row.step,
                "stop": each.row.stop,
                "reason": each.reason,
            }
        )
    left_out = len(trajectories) - len(shown)
    page = (
        pages_environment()
        .get_template("export.html")
        .render(
            run=shelf.name,
            other=None,
            here="",
            alone=True,
            title=title,
            note=f"{left_out} more did not fit into this file." if left_out else "",
            tiles=run_tiles(shelf) if whole else [],
            chart=reward_chart({shelf.name: shelf.curve(linked=False)}) if whole else "",
            figures=_figures(shelf) if whole else [],
            evaluations=_evaluations(shelf) if whole else [],
            shown=shown,
            has_tokens=shelf.chat is not None,
            colour=colour,
            colours=COLOURS,
        )
    )
    return page, len(shown)


def _embedding() -> PictureLink:
    """Pictures as part of the page, until there are too many of them."""
    left = _MOST_PICTURE_BYTES

    def link(_: str, data: bytes) -> str | None:
        nonlocal left
        if len(data) > left or (url := data_url(data)) is None:
            return None
        left -= len(data)
        return url

    return link


def _figures(shelf: Shelf) -> list[tuple[str, str]]:
    """Where the time went, as the run's report drew it."""
    path = Path(shelf.run) / "figures" / "time.png"
    if not path.is_file() or path.stat().st_size > _MOST_FIGURE_BYTES:
        return []
    url = data_url(path.read_bytes())
    return [] if url is None else [("Where the time of a step went", url)]


def _evaluations(shelf: Shelf) -> list[dict[str, str]]:
    directory = shelf.catalog.run
    reports = []
    for version in directory.evaluations():
        for mode in ("sampled", "greedy"):
            try:
                reports.append(read_report(directory.evaluation(version, mode).report_file))
            except AgentFlyError:
                continue  # not evaluated in this mode, or not finished
    return report_table(reports)
