"""Pictures of a run: how the reward went, and where the seconds of a step went.

Drawn without a display and without matplotlib's global state, so that any thread may draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentfly_lib.store.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["EvaluationPoint", "reward_curve", "time_split"]

_TRAIN = "#9aa5b1"
_HELD_OUT = "#1f5fbf"
_GREEDY = "#d9822b"
_PARTS = ("#1f5fbf", "#d9822b", "#3a9d5d", "#b8433f", "#7b5ea7", "#8c6d46", "#d277a8", "#5b8a99", "#a8a03c", "#9aa5b1")
_OTHER = "#cfd6dd"
_DPI = 120
_MAX_TICKS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One held-out evaluation. Rewards are means over problems."""

    step: int
    """Updates done before it: 0 is the starting policy."""
    mean: float
    """Sampled trajectories."""
    low: float
    """Lower end of the mean's 95% interval."""
    high: float
    greedy: float | None = None


def reward_curve(
    train_points: Sequence[tuple[int, float]],
    eval_points: Sequence[EvaluationPoint],
    path: Path,
    *,
    title: str = "Reward",
) -> Path:
    """Draw the training reward of each (step, mean) and the held-out rewards to a PNG file; returns `path`."""
    figure, axes = _figure(title)
    if train_points:
        steps, means = zip(*sorted(train_points), strict=True)
        axes.plot(steps, means, color=_TRAIN, linewidth=1.3, label="training, sampled", zorder=1)
    points = sorted(eval_points, key=lambda point: point.step)
    if points:
        steps = [point.step for point in points]
        axes.fill_between(
            steps,
            [point.low for point in points],
            [point.high for point in points],
            color=_HELD_OUT,
            alpha=0.18,
            linewidth=0,
            label="95% interval",
            zorder=2,
        )
        axes.plot(
            steps,
            [point.mean for point in points],
            "o-",
            color=_HELD_OUT,
            linewidth=2,
            label="held-out, sampled",
            zorder=4,
        )
        greedy = [(point.step, point.greedy) for point in points if point.greedy is not None]
        if greedy:
            axes.plot(
                [step for step, _ in greedy],
                [value for _, value in greedy],
                "s--",
                color=_GREEDY,
                linewidth=1.3,
                markersize=5,
                label="held-out, greedy",
                zorder=3,
            )
        _name_ends(axes, points)
    axes.set_ylabel("mean reward")
    axes.set_ylim(*_limits(train_points, points))
    if train_points or points:
        axes.legend(loc="lower right", frameon=False)
    return _save(figure, path)


def time_split(
    steps: Sequence[tuple[int, Mapping[str, float]]], path: Path, *, title: str = "Where the time of a step went"
) -> Path:
    """Draw (step, wall seconds by part) as stacked bars to a PNG file, largest parts at the bottom; returns `path`."""
    figure, axes = _figure(title)
    totals: dict[str, float] = {}
    for _, parts in steps:
        for name, seconds in parts.items():
            totals[name] = totals.get(name, 0.0) + seconds
    ordered = sorted(totals, key=lambda name: -totals[name])
    shown, rest = ordered, []
    if len(ordered) > len(_PARTS):
        shown, rest = ordered[: len(_PARTS) - 1], ordered[len(_PARTS) - 1 :]
    whole = sum(totals.values()) or 1.0
    numbers = [step for step, _ in steps]
    bottom = [0.0] * len(numbers)
    stacks = [
        (name, [parts.get(name, 0.0) for _, parts in steps], color) for name, color in zip(shown, _PARTS, strict=False)
    ]
    if rest:
        stacks.append(("other", [sum(parts.get(name, 0.0) for name in rest) for _, parts in steps], _OTHER))
    for name, heights, color in stacks:
        axes.bar(
            numbers, heights, bottom=bottom, width=0.8, color=color, label=f"{name}  {100 * sum(heights) / whole:.0f}%"
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("seconds")
    if stacks:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    return _save(figure, path)


def _figure(title: str) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=_MAX_TICKS))
    axes.grid(axis="y", color="#e4e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _name_ends(axes: Axes, points: Sequence[EvaluationPoint]) -> None:
    """Write the first and the last held-out reward beside their points."""
    for point in {points[0].step: points[0], points[-1].step: points[-1]}.values():
        axes.annotate(
            f"{point.mean:.2f}",
            (point.step, point.mean),
            textcoords="offset points",
            xytext=(0, -16),
            ha="center",
            color=_HELD_OUT,
            fontweight="bold",
        )


def _limits(train_points: Sequence[tuple[int, float]], points: Sequence[EvaluationPoint]) -> tuple[float, float]:
    """From 0 to 1 for rewards in that range, wider for others."""
    values = [mean for _, mean in train_points] + [end for point in points for end in (point.low, point.high)]
    low, high = min([0.0, *values]), max([1.0, *values])
    margin = 0.03 * (high - low)
    return low - margin, high + margin


def _save(figure: Figure, path: Path) -> Path:
    with atomic_file(path) as temporary:
        figure.savefig(temporary, dpi=_DPI, format="png")
    return path
