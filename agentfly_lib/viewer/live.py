"""What a person watches while a run goes on: a bar per stage and a table of the latest steps.

On a terminal everything is redrawn in place; elsewhere (a log file, a worker) each step is one plain line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentfly_lib.viewer.state import StageView

__all__ = ["SHOWN_METRICS", "LiveDisplay", "StageBar", "step_table"]

_KEPT_ROWS = 12
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "train/reward/mean", "{:.3f}"),
    ("±", "train/reward/std", "{:.2f}"),
    ("signal", "train/groups_with_signal/fraction", "{:.0%}"),
    ("tools", "rollout/tool_calls/mean", "{:.2f}"),
    ("turns", "rollout/turns/mean", "{:.2f}"),
    ("tokens", "rollout/sampled_tokens/mean", "{:.1f}"),
    ("entropy", "train/entropy/mean", "{:.2f}"),
    ("clip", "train/clip_fraction/mean", "{:.1%}"),
    ("grad", "train/grad_norm/mean", "{:.2f}"),
    ("tok/s", "rollout/tokens_per_second/mean", "{:.0f}"),
    ("step s", "time/step/seconds", "{:.2f}"),
    ("own", "time/overhead/fraction", "{:.0%}"),
    ("overlap", "time/overlap/fraction", "{:.0%}"),
    ("idle", "time/engine_idle/fraction", "{:.0%}"),
    ("held-out", "eval/reward/mean", "{:.3f}"),
)

_current: ContextVar[LiveDisplay | None] = ContextVar("agentfly_display", default=None)


@dataclass(frozen=True, slots=True)
class StageBar:
    """One stage in progress."""

    _progress: Progress
    _task: TaskID

    def update(
        self, *, completed: float, total: float | None = None, note: str = "", facts: Mapping[str, float] | None = None
    ) -> None:
        """Shows how far the stage is; `facts` are counts of its own, for `agentfly top`."""
        self._progress.update(self._task, completed=completed, total=total, note=note)
        if facts is not None:
            self._progress.update(self._task, facts=facts)


class LiveDisplay:
    """Bars and table of one run; a context manager."""

    def __init__(self, title: str, *, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console()
        self._title = title
        self._quiet = quiet
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._rows = deque[tuple[str, Mapping[str, float]]](maxlen=_KEPT_ROWS)
        self._animated = self.console.is_terminal and not quiet
        self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4, transient=False)

    def use(self) -> None:
        """Flow runs started from this context show themselves here."""
        _current.set(self)

    @staticmethod
    def current() -> LiveDisplay:
        """The display in use, or one that shows nothing."""
        return _current.get() or LiveDisplay("", quiet=True)

    def __enter__(self) -> LiveDisplay:
        if self._animated:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._animated:
            self._live.stop()

    @contextmanager
    def stage(self, name: str, *, total: float | None = None) -> Iterator[StageBar]:
        """A bar that lives as long as the block; `name` such as `collect-000012`."""
        task = self._progress.add_task(name, total=total, note="", facts={})
        if not self._animated and not self._quiet and total is None:
            self.console.print(f"{name} ...", highlight=False)
        try:
            yield StageBar(self._progress, task)
        finally:
            self._progress.remove_task(task)

    def row(self, label: str, metrics: Mapping[str, float]) -> None:
        """Adds a line to the table; columns whose metric is absent stay empty."""
        self._rows.append((label, dict(metrics)))
        if not self._animated and not self._quiet:
            cells = [f"{name} {text.format(metrics[key])}" for name, key, text in _COLUMNS if key in metrics]
            self.console.print(f"{label:>12}  " + "  ".join(cells), highlight=False, soft_wrap=True)

    @property
    def stages(self) -> tuple[StageView, ...]:
        """What is in progress, the oldest first."""
        return tuple(
            StageView(
                name=task.description,
                completed=task.completed,
                total=task.total,
                note=task.fields["note"],
                seconds=task.elapsed or 0.0,
                facts=task.fields["facts"],
            )
            for task in self._progress.tasks
        )

    @property
    def rows(self) -> tuple[tuple[str, Mapping[str, float]], ...]:
        """The newest lines of the table: label and metrics."""
        return tuple(self._rows)

    def note(self, text: str) -> None:
        """A line above the bars."""
        if not self._quiet:
            self.console.print(text, highlight=False)

    def _render(self) -> Group:
        rows = self.rows
        return Group(step_table(self._title, rows), self._progress) if rows else Group(self._progress)


def step_table(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """Label and metrics of steps, one a line; columns whose metric nobody has are left out."""
    shown = [column for column in _COLUMNS if any(column[1] in metrics for _, metrics in rows)]
    table = Table(title=title, title_justify="left", header_style="bold", expand=False, pad_edge=False)
    table.add_column("step", justify="right")
    for name, _, _ in shown:
        table.add_column(name, justify="right")
    for label, metrics in rows:
        table.add_row(label, *[text.format(metrics[key]) if key in metrics else "" for _, key, text in shown])
    return table


SHOWN_METRICS = frozenset(key for _, key, _ in _COLUMNS)
"""Metrics that the table has a column for."""
