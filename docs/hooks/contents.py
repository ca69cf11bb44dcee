"""The table of contents: what mkdocs.yml lists, and after it every other page, so that none can be missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

REFERENCE = "reference/api/"
DECISIONS = "decisions/"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs; runs after `generated`, so it sees the generated pages too."""
    nav = config.nav or []
    listed = set(_paths(nav))
    others = [file.src_uri for file in files.documentation_pages() if file.src_uri not in listed]
    for section in nav:
        for title, pages in section.items() if isinstance(section, dict) else ():
            if title == "Reference":
                pages[:] = [page for page in pages if "API" not in page]
                pages.append({"API": _taken(others, REFERENCE)})
            elif title == "Project":
                pages[:] = [page for page in pages if page != f"{DECISIONS}index.md"]
                pages.append({"Decisions": _taken(others, DECISIONS)})
    if others:
        nav.append({"More": others})
    return files


def _taken(others: list[str], folder: str) -> list[str]:
    """The folder's pages, its index first; they are taken out of the others."""
    found = [page for page in others if page.startswith(folder)]
    others[:] = [page for page in others if page not in found]
    index = f"{folder}index.md"
    return [index, *(page for page in found if page != index)]


def _paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for pages in nav.values():
            yield from _paths(pages)
    else:
        for each in nav:
            yield from _paths(each)
