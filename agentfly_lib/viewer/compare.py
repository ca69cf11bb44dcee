"""`agentfly compare`: reads runs, and leaves the comparison where it is wanted."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentfly_lib.evaluation.runs import RunSummary, compare_runs
from agentfly_lib.store.atomic import write_bytes
from agentfly_lib.tracking.tracker import Tracker
from agentfly_lib.viewer.compare_report import comparison_figure, comparison_markdown, comparison_text

__all__ = ["show_comparison"]


def show_comparison(
    runs: Sequence[Path],
    *,
    target: float | None = None,
    markdown: Path | None = None,
    figure: Path | None = None,
    track: bool = False,
) -> str:
    """The comparison as text; written as Markdown and PNG, and logged to the first run's MLflow run, where asked."""
    comparison = compare_runs(runs, target=target)
    text = comparison_markdown(comparison)
    if markdown is not None:
        write_bytes(markdown, text.encode())
    if figure is not None:
        comparison_figure(comparison, figure)
    if track:
        with tempfile.TemporaryDirectory() as folder:
            picture = comparison_figure(comparison, Path(folder) / "comparison.png")
            _log(comparison.runs[0], text, picture)
    return comparison_text(comparison)


def _log(run: RunSummary, text: str, picture: Path) -> None:
    config = run.config.tracking
    root = run.directory.resolve().parent
    tracker = Tracker.open(run.directory, config, run_name=run.name, root=root)
    tracker.log_config(text, "comparison.md")
    tracker.log_figure(picture)
    tracker.finish("FINISHED" if run.finished else "KILLED", timeout=config.drain_seconds)
