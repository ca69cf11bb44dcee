"""`agentfly compare`: reads runs, and leaves the comparison where it is wanted."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentfly_lib.evaluation.runs import compare_runs
from agentfly_lib.store.atomic import write_bytes
from agentfly_lib.tracking.tracker import Tracker
from agentfly_lib.viewer.compare_report import comparison_figure, comparison_markdown, comparison_text

__all__ = ["show_comparison", "track_comparison"]


def show_comparison(
    runs: Sequence[Path],
    *,
    target: float | None = None,
    markdown: Path | None = None,
    figure: Path | None = None,
) -> str:
    """The comparison as text; written as Markdown and PNG where asked."""
    comparison = compare_runs(runs, target=target)
    if markdown is not None:
        write_bytes(markdown, comparison_markdown(comparison).encode())
    if figure is not None:
        comparison_figure(comparison, figure)
    return comparison_text(comparison)


def track_comparison(runs: Sequence[Path], *, target: float | None = None) -> None:
    """Adds the comparison to the first run's MLflow run, whose status and end stay as they are."""
    comparison = compare_runs(runs, target=target)
    first = comparison.runs[0]
    config, root = first.config.tracking, first.directory.resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        picture = comparison_figure(comparison, Path(folder) / "comparison.png")
        tracker = Tracker.open(first.directory, config, run_name=first.name, root=root, adds=True)
        tracker.log_config(comparison_markdown(comparison), "comparison.md")
        tracker.log_figure(picture)
        tracker.finish(timeout=config.drain_seconds)
