"""The pages' colours can be read: contrast by WCAG 2.2 (success criterion 1.4.3), in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agentfly_lib.viewer.web

STYLE = (Path(agentfly_lib.viewer.web.__file__).parent / "templates" / "style.css").read_text()
RGB = tuple[float, float, float]


def palette(block: str) -> dict[str, RGB]:
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6})", block)
    return {name: tuple(int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)) for name, code in found}  # type: ignore[misc]


LIGHT = palette(STYLE.split("@media (prefers-color-scheme: dark)")[0])
DARK = LIGHT | palette(STYLE.split("@media (prefers-color-scheme: dark)")[1].split("* {")[0])


def luminance(colour: RGB) -> float:
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: RGB, other: RGB) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mixed(over: RGB, under: RGB, share: float) -> RGB:
    return tuple(share * a + (1 - share) * b for a, b in zip(over, under, strict=True))  # type: ignore[return-value]


def test_the_formula_by_hand():
    assert contrast((0, 0, 0), (1, 1, 1)) == 21
    assert contrast((0.4666667,) * 3, (1, 1, 1)) == pytest.approx(4.48, abs=0.01)  # #777 on white, known to fail


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "ink-2", "accent", "good", "bad"])
@pytest.mark.parametrize("ground", ["paper", "ground", "hover"])
def test_text_is_readable(colours, text, ground):
    assert contrast(colours[text], colours[ground]) >= 4.5


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_on_a_coloured_token_and_on_a_button_is_readable(colours):
    shares = {int(share) / 100 for share in re.findall(r"var\(--(?:warm|cool)\) (\d+)%", STYLE)}
    assert max(shares) == 0.78
    for name in ("warm", "cool"):
        for share in shares:
            assert contrast(colours["ink"], mixed(colours[name], colours["paper"], share)) >= 4.5
    assert contrast(colours["accent-ink"], colours["accent"]) >= 4.5
    assert contrast(colours["bad"], colours["bad-soft"]) >= 4.5


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_of_charts_are_seen(colours):
    for name in ("series-1", "series-2"):
        assert contrast(colours[name], colours["paper"]) >= 3
