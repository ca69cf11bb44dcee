"""`agentfly compare` and `agentfly runs`: tables for a terminal, Markdown for a page, a picture of the curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentfly_lib.evaluation.compare import Comparison
from agentfly_lib.evaluation.runs import Progress, RunComparison, RunSummary
from agentfly_lib.store.atomic import write_bytes
from agentfly_lib.visible import visible

__all__ = ["comparison_figure", "comparison_markdown", "comparison_text", "runs_text"]

Rows = list[list[str]]


def runs_text(runs: Sequence[RunSummary]) -> str:
    """One line per run."""
    rows: Rows = [["run", "model", "algorithm", "steps", "held-out reward", "evaluated at"]]
    for run in runs:
        config, last = run.config, run.last
        model = getattr(config.model, "name_or_path", config.model.type)
        rows.append(
            [
                run.name,
                Path(str(model)).name,
                config.algorithm.advantage.type,
                f"{run.steps_done} of {config.run.steps}",
                _reward(last),
                f"version {last.version}" if last else "",
            ]
        )
    return _terminal([("", rows)])


def comparison_text(comparison: RunComparison) -> str:
    """For a terminal."""
    return _terminal(
        [("held-out reward and its price", _results(comparison)), ("what differs", _parameters(comparison))]
    )


def comparison_markdown(comparison: RunComparison) -> str:
    """For a page."""
    return "\n\n".join(
        f"## {title}\n\n{_markdown(rows)}"
        for title, rows in (
            ("Held-out reward and its price", _results(comparison)),
            ("What differs", _parameters(comparison)),
        )
    )


def comparison_figure(comparison: RunComparison, path: Path) -> Path:
    """Held-out reward over sampled tokens, one line per run with its 95% interval, as a PNG file; returns `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for run in comparison.runs:
        points = [(point.tokens, point.report.reward) for point in run.points if point.report.reward]
        tokens = [token for token, _ in points]
        line = axes.plot(tokens, [reward.mean for _, reward in points], "o-", label=run.name, markersize=4)[0]
        axes.fill_between(
            tokens,
            [reward.low for _, reward in points],
            [reward.high for _, reward in points],
            alpha=0.15,
            color=line.get_color(),
            linewidth=0,
        )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("tokens sampled for training")
    axes.set_ylabel("held-out reward, 95% interval")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    write_bytes(path, picture.getvalue())
    return path


def _results(comparison: RunComparison) -> Rows:
    target = comparison.target
    rows: Rows = [["run", "steps", "first", "last", "against the first run", "problems"]]
    if target is not None:
        rows[0] += [f"tokens to {target:.3f}", "minutes"]
    for run, pair in zip(comparison.runs, comparison.paired, strict=True):
        first, last = (run.points[0], run.points[-1]) if run.points else (None, None)
        row = [
            run.name,
            f"{run.steps_done} of {run.config.run.steps}",
            _reward(first),
            _reward(last),
            _paired(pair),
            str(pair.difference.problems) if isinstance(pair, Comparison) else "",
        ]
        if target is not None:
            reached = run.reached(target)
            row += [f"{reached.tokens:,}", f"{reached.seconds / 60:.1f}"] if reached else ["", ""]
        rows.append(row)
    return rows


def _reward(point: Progress | None) -> str:
    if point is None:
        return ""
    return "none could be scored" if point.report.reward is None else str(point.report.reward)


def _paired(pair: Comparison | str | None) -> str:
    if not isinstance(pair, Comparison):
        return pair or ""
    verdict = "" if pair.significant else ", no clear difference"
    estimate = pair.difference
    return f"{estimate.mean:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}], p {_p_value(pair.p_value)}{verdict}"


def _p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _parameters(comparison: RunComparison) -> Rows:
    return [["parameter", *(run.name for run in comparison.runs)], *([key, *v] for key, v in comparison.parameters)]


def _terminal(tables: Sequence[tuple[str, Rows]]) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    for title, (head, *body) in tables:
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
        for name in head:
            table.add_column(visible(name))
        for row in body:
            table.add_row(*(visible(cell) for cell in row))
        console.print(table, markup=False)
        console.print()
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def _markdown(rows: Rows) -> str:
    lines = [
        "| " + " | ".join(visible(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
    ]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)
