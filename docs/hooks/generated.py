"""Pages that are made from the code while the site is built: recipes, command line, API, changelog, decisions."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from api_reference import PAGES, api_index
from command_reference import command_reference
from recipe_reference import recipe_reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs once it knows the pages of docs/."""
    from mkdocs.structure.files import File

    for path, text in _pages():
        files.append(File.generated(config, path, content=text))
    for recipe in _recipes():
        files.append(File.generated(config, f"recipes/{recipe.name}", content=recipe.read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Called by mkdocs for each page: recipes lie beside docs/ in the repository, and inside the site."""
    root = posixpath.relpath(".", posixpath.dirname(page.file.src_uri) or ".")
    return re.sub(r"\]\((?:\.\./)+recipes/", f"]({root}/recipes/", markdown)


def _recipes() -> list[Path]:
    return sorted((REPOSITORY / "recipes").glob("*.toml"))


def _pages() -> Iterator[tuple[str, str]]:
    yield "reference/recipes.md", recipe_reference(_recipes())
    yield "reference/cli.md", command_reference()
    yield "reference/api/index.md", api_index()
    for page in PAGES:
        yield page.path, page.markdown()
    yield "changelog.md", (REPOSITORY / "CHANGELOG.md").read_text().replace("](docs/", "](")
    yield "decisions/index.md", _decisions()


def _decisions() -> str:
    files = sorted((REPOSITORY / "docs" / "decisions").glob("[0-9]*.md"))
    titles = [(path.read_text().splitlines()[0].removeprefix("# "), path.name) for path in files]
    lines = [f"- [{title}]({name})" for title, name in titles]
    return (
        "# Decisions\n\nChoices that someone will question: what was decided, why, and what it costs.\n\n"
        + "\n".join(lines)
    )
