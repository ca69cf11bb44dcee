"""The pages of the documentation, and the code blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "REPOSITORY", "Block", "blocks_of", "page_name"]

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<note><!--[^\n]*-->\n)?^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    line: int
    """Where it begins, from 1."""
    language: str
    text: str
    title: str | None
    """Path of the file that it is, in the pages whose blocks make up a folder."""
    note: str | None
    """The comment on the line before it."""


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            line=text.count("\n", 0, match.start("language")) + 1,
            language=match["language"],
            text=match["text"],
            title=match["title"],
            note=match["note"].strip() if match["note"] else None,
        )
        for match in BLOCK.finditer(text)
    ]


def page_name(page: Path) -> str:
    """As `docs/tools.md`."""
    return str(page.relative_to(REPOSITORY))
