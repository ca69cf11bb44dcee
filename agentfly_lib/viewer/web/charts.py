"""Pictures inside the pages, as SVG text in the page's own colours, so that they follow its light and dark.

Drawn by hand: a first page would wait for Matplotlib to load, and pygal says what a point is by a script alone, where
these pages have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Curve", "reward_chart"]

Points = Sequence[tuple[int, float]]

_WIDTH, _HEIGHT = 864, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 690, 10, 152
"""Edges of the area that curves are drawn in; names of the curves stand to its right."""
_COLOURS = ("var(--series-1)", "var(--series-2)")
_MARKED = 60
"""Steps up to which each has a mark, which links to it."""
_NAME_LENGTH = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Rewards of a run."""

    train: Points
    """Step and mean reward of its trajectories."""
    held_out: Points = ()
    """Version and mean reward on the held-out problems."""
    link: str | None = None
    """Address of a step, to which its number is appended."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where a step and a reward lie in the picture."""

    steps: tuple[float, float]
    rewards: tuple[float, float]

    @classmethod
    def around(cls, points: Points) -> _Frame:
        steps, rewards = [step for step, _ in points], [reward for _, reward in points]
        return cls(_padded(min(steps), max(steps), 0.02), _padded(min(rewards), max(rewards), 0.06))

    def x(self, step: float) -> float:
        low, high = self.steps
        return round(_LEFT + (step - low) / (high - low) * (_RIGHT - _LEFT), 2)

    def y(self, reward: float) -> float:
        low, high = self.rewards
        return round(_BOTTOM - (reward - low) / (high - low) * (_BOTTOM - _TOP), 2)


def reward_chart(curves: Mapping[str, Curve]) -> str:
    """Mean reward over steps by name of the run, at most two; empty where nothing is scored yet."""
    points = [point for curve in curves.values() for line in (curve.train, curve.held_out) for point in line]
    if not points:
        return ""
    frame = _Frame.around(points)
    drawn = [*_axes(frame)]
    names: list[tuple[str, str, bool]] = []  # of a run, its colour, and whether this is its held-out curve
    for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
        if curve.train:
            drawn += _trained(frame, curve, colour, name if len(curves) > 1 else "")
            names.append((name, colour, False))
        if curve.held_out:
            drawn += _held_out(frame, curve.held_out, colour)
            names.append((name, colour, True))
    drawn += _legend(names)
    # not an image: what is inside one is hidden from those who do not see, and here are links
    return (
        f'<svg role="group" aria-label="Mean reward over steps" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="11" '
        f'style="fill: var(--ink-2)">{"".join(drawn)}</svg>'
    )


def _axes(frame: _Frame) -> Iterator[str]:
    yield '<g aria-hidden="true">'
    for value, text in _ticks(*frame.rewards, most=5):
        y = frame.y(value)
        yield f'<path d="M{_LEFT} {y}H{_RIGHT}" style="stroke: var(--line); stroke-width: .7"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{text}</text>'
    yield f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" style="fill: none; stroke: var(--line)"/>'
    for value, text in _ticks(*frame.steps, most=12, whole=True):
        yield f'<text x="{frame.x(value)}" y="{_BOTTOM + 15}" text-anchor="middle">{text}</text>'
    yield f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 32}" text-anchor="middle">step</text>'
    middle = (_TOP + _BOTTOM) / 2
    yield f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">mean reward</text></g>'


def _trained(frame: _Frame, curve: Curve, colour: str, name: str) -> Iterator[str]:
    yield _line(frame, curve.train, f"stroke: {colour}; stroke-width: 1.8")
    if len(curve.train) > _MARKED:
        return
    for step, reward in curve.train:
        place = f'cx="{frame.x(step)}" cy="{frame.y(reward)}"'
        says = escape(f"{name} step {step}, mean reward {reward:.3f}".strip())
        mark = f'<circle {place} r="2.6" style="fill: {colour}"><title>{says}</title></circle>'
        if curve.link is None:
            yield mark
        else:  # a wider circle around it is easier to hit
            wide = f'<circle {place} r="8" style="fill: transparent"><title>{says}</title></circle>'
            yield f'<a href="{escape(f"{curve.link}{step}")}" aria-label="{says}">{mark}{wide}</a>'


def _held_out(frame: _Frame, points: Points, colour: str) -> Iterator[str]:
    yield _line(frame, points, f"stroke: {colour}; stroke-width: 1.2; stroke-dasharray: 5 3")
    for version, reward in points:
        says = f"version {version}, held-out reward {reward:.3f}"
        yield f"{_diamond(frame.x(version), frame.y(reward), colour)}<title>{says}</title></path>"


def _line(frame: _Frame, points: Points, style: str) -> str:
    path = " ".join(f"{frame.x(step)},{frame.y(reward)}" for step, reward in points)
    return f'<polyline points="{path}" style="fill: none; stroke-linejoin: round; {style}"/>'


def _diamond(x: float, y: float, colour: str) -> str:
    return f'<path d="M{x} {y - 3.6}l3.6 3.6l-3.6 3.6l-3.6 -3.6z" style="fill: {colour}">'


def _legend(names: Sequence[tuple[str, str, bool]]) -> Iterator[str]:
    for row, (name, colour, held_out) in enumerate(names):
        x, y = _RIGHT + 12, _TOP + 8 + 18 * row
        dashes = "; stroke-dasharray: 5 3" if held_out else ""
        yield f'<path d="M{x} {y}h18" style="stroke: {colour}; stroke-width: 1.8{dashes}"/>'
        if held_out:
            yield f"{_diamond(x + 9, y, colour)}</path>"
        most = _NAME_LENGTH - (10 if held_out else 0)
        shown = (name if len(name) <= most else f"{name[: most - 1]}…") + (", held-out" if held_out else "")
        yield f'<text x="{x + 24}" y="{y + 4}">{escape(shown)}<title>{escape(name)}</title></text>'


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    room = (high - low) * share or max(abs(high) * 0.1, 0.5)
    return low - room, high + room


def _ticks(low: float, high: float, *, most: int, whole: bool = False) -> Iterator[tuple[float, str]]:
    """At most so many round numbers within, evenly apart, and how they are written."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    apart = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
    apart = max(apart, 1.0) if whole else apart
    digits = max(-math.floor(math.log10(apart)), 0)
    for number in range(math.ceil(low / apart), math.floor(high / apart) + 1):
        yield number * apart, f"{number * apart:.{digits}f}"
