"""The text of an HTML page. One pass, in time linear in its length, whatever the page says."""

from __future__ import annotations

import html
import re

__all__ = ["html_to_text"]

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object"})
"""Elements whose content is no text."""
_BREAKS = re.compile(
    "address|article|aside|blockquote|br|dd|div|dl|dt|fieldset|figure|footer|form|h[1-6]|header|hr|li|main|nav|ol|p|pre|"
    "section|table|title|tr|ul"
)
_TAG = re.compile(r"/?([a-zA-Z][a-zA-Z0-9-]*)")
_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def html_to_text(page: str) -> str:
    """Paragraphs on lines of their own, list items with a dash, cells divided by ` | `; no scripts, no styles."""
    lowered = page.translate(_ASCII_LOWER)  # of the same length, unlike lower()
    parts: list[str] = []
    missing: set[str] = set()  # ends that do not come any more, so that nobody looks for them twice
    at = 0
    while (start := page.find("<", at)) >= 0:
        parts.append(page[at:start])
        if page.startswith("<!--", start):
            at = _after(page, "-->", start + 4, missing)
            continue
        match = _TAG.match(page, start + 1)
        if match is None and page[start + 1 : start + 2] not in ("!", "?", "/"):
            parts.append("<")  # a sign and no tag
            at = start + 1
            continue
        at = _after(page, ">", start + 1, missing)
        if match is None:
            continue
        name = match.group(1).translate(_ASCII_LOWER)
        if name in _SILENT and page[start + 1] != "/" and page[at - 2 : at] != "/>":
            at = _after(lowered, f"</{name}", at, missing)
            at = _after(page, ">", at, missing)
        elif _BREAKS.fullmatch(name):
            parts.append("\n- " if name == "li" and page[start + 1] != "/" else "\n")
        elif name in ("td", "th") and page[start + 1] == "/":
            parts.append(" | ")
    parts.append(page[at:])
    lines = (" ".join(line.split()).removesuffix(" |") for line in html.unescape("".join(parts)).split("\n"))
    return "\n".join(line for line in lines if line and line != "-")


def _after(page: str, mark: str, start: int, missing: set[str]) -> int:
    """Position behind the next mark; the end of the page if there is none."""
    if mark in missing:
        return len(page)
    found = page.find(mark, start)
    if found < 0:
        missing.add(mark)
        return len(page)
    return found + len(mark)
