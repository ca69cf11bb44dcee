"""The end of a run in words: reward before and after, where a step's time went, and what to open next."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

__all__ = ["TIME_PARTS", "mean_times", "summary_markdown", "summary_text"]

TIME_PARTS = ("generation", "tools", "reward", "forward_backward", "overhead")
"""The disjoint parts of a step's wall time; each is a metric `time/<part>/seconds`."""

Rows = Sequence[Mapping[str, str]]
Steps = Sequence[tuple[int, Mapping[str, float]]]


def mean_times(steps: Steps) -> dict[str, float]:
    """Mean wall seconds per step of each part, over steps that this machine measured whole. Empty if there is none.

    The first step of a process is left out when there are others: it pays for caches that are filled once.
    """
    measured = [metrics for _, metrics in steps if metrics.get("time/generation/seconds")]
    measured = measured[1:] or measured
    return (
        {part: fmean(metrics[f"time/{part}/seconds"] for metrics in measured) for part in TIME_PARTS}
        if measured
        else {}
    )


def summary_text(name: str, table: Rows, steps: Steps, links: Mapping[str, str], *, root: Path) -> str:
    """The report for a terminal, as plain text with box drawing."""
    console = Console(file=io.StringIO(), width=118, force_terminal=False)
    console.print(_rich(f"Held-out reward of {name}", table))
    times = mean_times(steps)
    if times:
        console.print(_rich("Where a step's time goes (mean)", _time_rows(times)))
    for label, target in links.items():
        console.print(f"{label:>14}  {target}", soft_wrap=True, highlight=False)
    directory = links["run directory"]
    console.print(f"{'look closer':>14}  agentfly show {directory}", soft_wrap=True, highlight=False)
    console.print(f"{'':>14}  agentfly ledger {directory}", soft_wrap=True, highlight=False)
    where = "" if root == Path("runs") else f" --root {root}"
    console.print(f"{'pages':>14}  agentfly ui{where}", soft_wrap=True, highlight=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def summary_markdown(name: str, table: Rows, steps: Steps, links: Mapping[str, str]) -> str:
    """The report for the Prefect page."""
    parts = [f"# {name}", "## Held-out reward", _markdown(table)]
    times = mean_times(steps)
    if times:
        parts += ["## Where a step's time goes", _markdown(_time_rows(times))]
    parts += ["## Where things are", "\n".join(f"- {label}: {_linked(target)}" for label, target in links.items())]
    return "\n\n".join(parts) + "\n"


def _time_rows(times: Mapping[str, float]) -> list[dict[str, str]]:
    total = sum(times.values())
    rows = [
        {"part": part.replace("_", " / "), "seconds": f"{seconds:.3f}", "share": f"{seconds / total:.1%}"}
        for part, seconds in times.items()
    ]
    return [*rows, {"part": "step", "seconds": f"{total:.3f}", "share": ""}]


def _rich(title: str, rows: Rows) -> Table:
    table = Table(title=title, title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row.values())
    return table


def _linked(target: str) -> str:
    return f"[{target}]({target})" if target.startswith(("http://", "https://")) else f"`{target}`"


def _markdown(rows: Rows) -> str:
    if not rows:
        return "(none)"
    head = "| " + " | ".join(rows[0]) + " |\n|" + " --- |" * len(rows[0])
    return "\n".join([head, *["| " + " | ".join(row.values()) + " |" for row in rows]])
