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
    measured = _measured(steps)
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
    overlap = _overlap_rows(steps)
    if overlap:
        console.print(_rich("Collections beside updates (mean of a step)", overlap))
    for label, target in links.items():
        console.print(f"{label:>14}  {target}", soft_wrap=True, highlight=False)
    directory = links["run directory"]
    console.print(f"{'look closer':>14}  agentfly show {directory}", soft_wrap=True, highlight=False)
    console.print(f"{'':>14}  agentfly ledger {directory}", soft_wrap=True, highlight=False)
    where = "" if root == Path("runs") else f" --root {root}"
    console.print(f"{'pages':>14}  agentfly ui{where}", soft_wrap=True, highlight=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def summary_markdown(
    name: str,
    table: Rows,
    steps: Steps,
    links: Mapping[str, str],
    *,
    pictures: Mapping[str, str] | None = None,
    trouble: str = "",
) -> str:
    """The report for the Prefect page and for `report.md`.

    pictures: addresses of the figures by name, shown under the reward and under the time. trouble: what went worst, as
    Markdown.
    """
    shown = pictures or {}
    parts = [f"# {name}", "## Held-out reward", *_picture(shown, "reward"), _markdown(table)]
    cost = _cost_rows(steps)
    if cost:
        parts += ["## What it cost", _markdown(cost)]
    times = mean_times(steps)
    if times:
        parts += ["## Where a step's time goes", *_picture(shown, "time"), _markdown(_time_rows(times))]
    overlap = _overlap_rows(steps)
    if overlap:
        parts += ["## Collections beside updates", _markdown(overlap)]
    if trouble:
        parts += ["## What went worst", trouble]
    parts += ["## Where things are", "\n".join(f"- {label}: {_linked(target)}" for label, target in links.items())]
    return "\n\n".join(parts) + "\n"


def _measured(steps: Steps) -> list[Mapping[str, float]]:
    measured = [metrics for _, metrics in steps if metrics.get("time/generation/seconds")]
    return measured[1:] or measured


def _overlap_rows(steps: Steps) -> list[dict[str, str]]:
    """How much went on at the same time; none where collections and updates take turns."""
    measured = [metrics for metrics in _measured(steps) if "time/overlap/seconds" in metrics]
    if not measured:
        return []
    mean = {
        name: fmean(metrics[f"time/{name}/seconds"] for metrics in measured)
        for name in ("step", "collect", "update", "overlap", "engine_idle")
    }
    rows = (
        ("its own collection", "collect", None),
        ("its update", "update", None),
        ("of the update, beside a collection", "overlap", "update"),
        ("the engine without a request", "engine_idle", "step"),
    )
    return [
        {
            "what": what,
            "seconds": f"{mean[name]:.3f}",
            "share": f"{mean[name] / mean[of]:.1%} of the {of}" if of and mean[of] else "",
        }
        for what, name, of in rows
    ]


def _cost_rows(steps: Steps) -> list[dict[str, str]]:
    """What all steps came to, in tokens and hours; what evaluations and checkpoints took is not in it."""
    if not steps:
        return []
    total = {
        name: sum(metrics.get(name, 0.0) for _, metrics in steps)
        for name in ("rollout/trajectories/count", "rollout/sampled_tokens/sum", "train/loss_tokens/count")
    }
    seconds = sum(metrics.get("time/step/seconds", 0.0) for _, metrics in steps)
    trajectories, sampled, trained = total.values()
    rows = [
        ("steps", f"{len(steps):,}"),
        ("trajectories", f"{trajectories:,.0f}"),
        ("tokens sampled", f"{sampled:,.0f}"),
        ("tokens trained on", f"{trained:,.0f}" + (f" ({trained / sampled:.0%})" if sampled else "")),
        ("time of all steps", _duration(seconds)),
        ("tokens sampled per second", f"{sampled / seconds:,.0f}" if seconds else ""),
    ]
    return [{"what": what, "how much": amount} for what, amount in rows if amount]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _picture(pictures: Mapping[str, str], name: str) -> list[str]:
    return [f"![{name}]({pictures[name]})"] if name in pictures else []


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
