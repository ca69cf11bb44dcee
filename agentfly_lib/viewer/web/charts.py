"""Pictures inside the pages, as SVG text in the page's own colours, so that they follow its light and dark."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Curve", "reward_chart"]

_PLACEHOLDERS = {
    "#010203": "var(--series-1)",
    "#020304": "var(--series-2)",
    "#030405": "var(--ink-2)",
    "#040506": "var(--line)",
}
"""Colours that are drawn, and what they become: a page's own, which matplotlib does not know."""
_SERIES, _INK, _LINE = ("#010203", "#020304"), "#030405", "#040506"
_MARKED = 60
"""Steps up to which each has a mark, which links to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Rewards of a run."""

    train: Sequence[tuple[int, float]]
    """Step and mean reward of its trajectories."""
    held_out: Sequence[tuple[int, float]] = ()
    """Version and mean reward on the held-out problems."""
    link: str | None = None
    """Address of a step, to which its number is appended."""


def reward_chart(curves: Mapping[str, Curve]) -> str:
    """Mean reward over steps by name of the run, at most two; empty where nothing is scored yet."""
    if not any(curve.train or curve.held_out for curve in curves.values()):
        return ""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "agentfly",
        "font.family": "sans-serif",
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
        "axes.edgecolor": _LINE,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(12, 2.3), layout="constrained", facecolor="none")
        axes = figure.subplots()
        axes.set_facecolor("none")
        for (name, curve), colour in zip(curves.items(), _SERIES, strict=False):
            steps, means = [step for step, _ in curve.train], [mean for _, mean in curve.train]
            axes.plot(steps, means, "-", color=colour, label=name, linewidth=1.6)
            if len(steps) <= _MARKED:
                marks = axes.scatter(steps, means, s=16, color=colour, zorder=3)
                if curve.link is not None:
                    marks.set_urls([f"{curve.link}{step}" for step in steps])
            if curve.held_out:
                versions, rewards = [v for v, _ in curve.held_out], [reward for _, reward in curve.held_out]
                axes.plot(
                    versions, rewards, "D--", color=colour, label=f"{name}, held-out", linewidth=1.1, markersize=4
                )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("step")
        axes.set_ylabel("mean reward")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=_LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        figure.legend(frameon=False, loc="outside right upper", fontsize="small")
        text = io.StringIO()
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    for drawn, shown in _PLACEHOLDERS.items():
        svg = svg.replace(drawn, shown)
    return svg.replace("<svg", '<svg role="img" aria-label="Mean reward over steps"', 1)
