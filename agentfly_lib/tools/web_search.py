"""`web_search`: finds pages. Where, says its provider: a corpus on disk, an index service, a search endpoint, or one of
your own.

[agent.tool_settings.web_search]
provider = { type = "corpus", path = "data/pages.jsonl" }
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from agentfly_lib.configs.base import Config
from agentfly_lib.envs.search.service import IndexSpec
from agentfly_lib.envs.search.settings import IndexConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.corpus import CorpusProvider
from agentfly_lib.tools.http_search import EndpointProvider, SearxngSettings, SerperSettings
from agentfly_lib.tools.observation import cut
from agentfly_lib.tools.search import SearchHit, SearchProvider
from agentfly_lib.tools.settings import ToolSettings
from agentfly_lib.tools.tool import Tool, tool

__all__ = ["CorpusSettings", "WebSearchSettings", "make_web_search", "web_search"]


class CorpusSettings(Config):
    """A JSONL file, searched by BM25."""

    type: Literal["corpus"] = "corpus"
    path: Path
    """Rows with `text` (or `contents`), and `title`, `url`, `id`, `image` if there are any."""

    def check(self) -> None:
        """Raises `ConfigError` if the file is not there."""
        if not self.path.is_file():
            raise ConfigError(f"web_search: there is no corpus {self.path} (looked from {Path.cwd()})")


class IndexSettings(IndexConfig):
    """An index in a process of its own, by words or by embeddings, which all trajectories share."""

    type: Literal["index"] = "index"

    @property
    def spec(self) -> IndexSpec:
        """The index as a resource."""
        return IndexSpec(config=IndexConfig(**{name: getattr(self, name) for name in IndexConfig.model_fields}))

    def check(self) -> None:
        """Raises `ConfigError` if a package or a file is not there."""
        self.spec.check()


class WebSearchSettings(ToolSettings):
    """Where is searched, and what is shown."""

    provider: (
        Annotated[CorpusSettings | IndexSettings | SearxngSettings | SerperSettings, Field(discriminator="type")] | None
    ) = None
    results: PositiveInt = 5
    """Hits shown."""
    max_hit_chars: PositiveInt = 800
    """Of one hit's text."""

    def check(self, tool: str) -> None:
        if self.provider is None:
            raise ConfigError(
                f"{tool} does not know where to search; set agent.tool_settings.{tool}.provider, for example to "
                '{ type = "corpus", path = "pages.jsonl" }, or give it one: make_web_search(provider)'
            )
        self.provider.check()


def make_web_search(provider: SearchProvider, settings: WebSearchSettings | None = None) -> Tool:
    """The tool over a provider, which may be of your own making. Of the settings, what is shown counts here."""
    shown = settings or WebSearchSettings()

    @tool(settings=settings, make=_from_settings, max_chars=shown.results * (shown.max_hit_chars + 300))
    async def web_search(query: str) -> ToolResult:
        """Search for pages. The best ones are shown, with their address and a passage.

        Args:
            query: What to look for, in a few words.
        """
        hits = await provider.search(query, shown.results)
        return _all_shown(hits, shown)

    return web_search


def _index_search(settings: WebSearchSettings, spec: IndexSpec) -> Tool:
    @tool(
        name="web_search",
        settings=settings,
        make=_from_settings,
        max_chars=settings.results * (settings.max_hit_chars + 300),
        needs=spec,
        timeout=spec.config.timeout_seconds + spec.config.start_seconds,  # a dead index is started anew
    )
    async def web_search(query: str, context: ToolContext) -> ToolResult:
        """Search for pages. The best ones are shown, with their address and a passage.

        Args:
            query: What to look for, in a few words.
        """
        found = await context.resources[spec].search(query, settings.results)
        hits = [SearchHit(title=document.title, url=document.id, text=document.text) for document in found]
        return _all_shown(hits, settings)

    return web_search


class _Nowhere:
    async def search(self, query: str, count: int) -> list[SearchHit]:
        raise ConfigError("web_search does not know where to search")


def _from_settings(settings: WebSearchSettings) -> Tool:
    match settings.provider:
        case None:
            return make_web_search(_Nowhere(), settings)
        case CorpusSettings():
            return make_web_search(CorpusProvider(settings.provider.path), settings)
        case IndexSettings() as index:
            return _index_search(settings, index.spec)
        case endpoint:
            return make_web_search(EndpointProvider(endpoint), settings)


def _all_shown(hits: Sequence[SearchHit], settings: WebSearchSettings) -> ToolResult:
    """The hits one below the other; their pictures in the same order, which an agent that sees is shown."""
    texts = [_shown(number, hit, settings) for number, hit in enumerate(hits, 1)]
    return ToolResult(
        observation="\n\n".join(texts) or "(nothing was found)",
        images=tuple(hit.image for hit in hits if hit.image is not None),
    )


def _shown(number: int, hit: SearchHit, settings: WebSearchSettings) -> str:
    head = " ".join(part for part in (hit.title.strip(), f"<{hit.url}>" if hit.url else "") if part)
    picture = " (with a picture)" if hit.image is not None else ""
    return f"[{number}] {head}{picture}\n{cut(hit.text.strip(), settings.max_hit_chars)}"


web_search = _from_settings(WebSearchSettings())
"""Needs settings that say where to search."""
