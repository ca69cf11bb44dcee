"""Pictures inside the pages, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

__all__ = ["reward_chart"]

_COLOURS = ("#1f5fbf", "#d9822b")


def reward_chart(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Mean reward over steps, one line per run; empty where nothing is scored yet."""
    if not any(curves.values()):
        return ""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 2.1), layout="constrained")
    axes = figure.subplots()
    for (name, points), colour in zip(curves.items(), _COLOURS, strict=False):
        steps, means = [step for step, _ in points], [mean for _, mean in points]
        axes.plot(steps, means, "o-", color=colour, label=name, linewidth=1.6, markersize=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e9ee")
    axes.legend(frameon=False, loc="lower right", fontsize="small")
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "agentfly"}):
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
