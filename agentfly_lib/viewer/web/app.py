"""The viewer's pages, rendered here and complete without a script: every choice is a link or a form.

What a model wrote is text, never markup: templates escape it, control characters are made visible, and the pages carry
a policy that lets a browser run nothing. A page that is saved looks the same without the server.
"""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from agentfly_lib.errors import AgentFlyError, UserError
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.types import TrajectoryGroup
from agentfly_lib.viewer.text import TokenText
from agentfly_lib.viewer.web.catalog import SORTS, Catalog, Filters
from agentfly_lib.viewer.web.charts import reward_chart
from agentfly_lib.viewer.web.spans import COLOURS, TrajectoryView, view_of
from agentfly_lib.visible import visible

if TYPE_CHECKING:
    from agentfly_lib.configs import RunConfig

__all__ = ["Viewer", "viewer_app"]

logger = logging.getLogger(__name__)

PAGE_ROWS = 50
_MOST_CHAINS = 64
"""Chains of a group that stand side by side."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Viewer:
    """What the pages say, as HTML."""

    def __init__(self, run: Path, *, chat: TokenText | None = None, other: Path | None = None) -> None:
        """chat: decodes tokens; without one only messages are shown. other: a run to hold beside this one."""
        self.run, self.other = run, other
        self.catalog = Catalog(RunDirectory(run))
        self._chat = chat
        self._other_catalog = None if other is None else Catalog(RunDirectory(other))
        self._advantages: OrderedDict[int, Mapping[str, list[Any]]] = OrderedDict()
        self._pages = Environment(
            loader=PackageLoader("agentfly_lib.viewer.web"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._pages.filters["visible"] = visible

    def index(self, query: Mapping[str, str]) -> str:
        """The list of trajectories, filtered, sorted and cut into pages."""
        filters, offset = _read_filters(query), _number(query, "offset", int) or 0
        page = self.catalog.find(filters, offset=max(offset, 0), limit=PAGE_ROWS)
        return self._render(
            "index.html",
            page=page,
            query=query,
            chart=self._chart(),
            choices={
                "stop": self.catalog.values("stop"),
                "outcome": self.catalog.values("outcome"),
                "failure": self.catalog.values("failure_kind"),
                "tool": self._tools(),
                "sort": list(SORTS),
                "order": ["descending", "ascending"],
            },
            steps=self.catalog.steps,
            earlier=_link("/", query, offset=max(page.offset - PAGE_ROWS, 0)) if page.offset else None,
            later=_link("/", query, offset=page.offset + PAGE_ROWS)
            if page.offset + len(page.rows) < page.found
            else None,
        )

    def group(self, step: int, group_id: str, query: Mapping[str, str], *, chain: int | None = None) -> str:
        """The chains of a group side by side, or one of them alone."""
        colour = query.get("colour", "mask")
        if colour not in COLOURS:
            raise UserError(f"tokens have no colour by {colour!r}; use one of {', '.join(COLOURS)}")
        found = self.catalog.group(step, group_id)
        views = self._views(step, found, colour, chain)
        where = f"/steps/{step}/{group_id}" + ("" if chain is None else f"/{chain}")
        return self._render(
            "group.html",
            step=step,
            group=found,
            views=views,
            chain=chain,
            colour=colour,
            colours=[(name, f"{where}?colour={name}") for name in COLOURS],
            has_tokens=self._chat is not None,
        )

    def _views(self, step: int, group: TrajectoryGroup, colour: str, chain: int | None) -> list[TrajectoryView]:
        chosen = [each for each in group.trajectories if chain in (None, each.chain)][:_MOST_CHAINS]
        if not chosen:
            raise UserError(f"group {group.id} has no chain {chain}")
        advantages = self._step_advantages(step)
        return [view_of(each, group, chat=self._chat, colour=colour, advantages=advantages) for each in chosen]

    def _step_advantages(self, step: int) -> Mapping[str, list[Any]]:
        """Advantages of each segment's tokens, by trajectory; empty where a step is not scored, or has no config."""
        if step not in self._advantages:
            from agentfly_lib.configs import load_config
            from agentfly_lib.store.scored import load_scored_groups
            from agentfly_lib.training.samples import build_samples

            by_trajectory: dict[str, list[Any]] = {}
            try:
                config: RunConfig = load_config(self.catalog.run.config_file)
                built = build_samples(load_scored_groups(self.catalog.run.step(step)), config.algorithm)
                for sample in built.samples:
                    by_trajectory.setdefault(sample.trajectory_id, []).append(sample.advantages)
            except AgentFlyError as error:
                logger.info("step %d has no advantages to show: %s", step, error)
                return {}
            self._advantages[step] = by_trajectory
            while len(self._advantages) > 2:
                self._advantages.popitem(last=False)
        return self._advantages[step]

    def _tools(self) -> list[str]:
        from agentfly_lib.configs import load_config

        try:
            return sorted(name.rpartition(":")[2] for name in load_config(self.catalog.run.config_file).agent.tools)
        except AgentFlyError:
            return []

    def _chart(self) -> str:
        curves = {self.run.name: self.catalog.rewards()}
        if self._other_catalog is not None and self.other is not None:
            curves[f"{self.other.name} (other)"] = self._other_catalog.rewards()
        return reward_chart(curves)

    def _render(self, name: str, **values: Any) -> str:
        return self._pages.get_template(name).render(run=self.run.name, other=self.other and self.other.name, **values)


def viewer_app(viewer: Viewer, *, hosts: Sequence[str]) -> Starlette:
    """The pages as an ASGI application that answers to these host names only."""

    def index(request: Request) -> str:
        return viewer.index(request.query_params)

    def group(request: Request) -> str:
        place = request.path_params
        return viewer.group(place["step"], place["group"], request.query_params)

    def chain(request: Request) -> str:
        place = request.path_params
        return viewer.group(place["step"], place["group"], request.query_params, chain=place["chain"])

    return Starlette(
        routes=[
            Route("/", _page(index)),
            Route("/steps/{step:int}/{group}", _page(group)),
            Route("/steps/{step:int}/{group}/{chain:int}", _page(chain)),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
    )


def _page(make: Callable[[Request], str]) -> Callable[[Request], Awaitable[Response]]:
    @functools.wraps(make)
    async def answer(request: Request) -> Response:
        try:
            return HTMLResponse(await run_in_threadpool(make, request), headers=_HEADERS)
        except UserError as error:
            return Response(visible(str(error)), status_code=404, media_type="text/plain", headers=_HEADERS)
        except AgentFlyError as error:
            return Response(visible(str(error)), status_code=500, media_type="text/plain", headers=_HEADERS)

    return answer


def _read_filters(query: Mapping[str, str]) -> Filters:
    order = query.get("order") or "descending"
    if order not in ("ascending", "descending"):
        raise UserError(f"order={order!r} must be ascending or descending")
    return Filters(
        step=_number(query, "step", int),
        stop=query.get("stop") or None,
        outcome=query.get("outcome") or None,
        failure=query.get("failure") or None,
        tool=query.get("tool") or None,
        min_reward=_number(query, "min_reward", float),
        max_reward=_number(query, "max_reward", float),
        sort=query.get("sort") or "step",
        order=order,  # type: ignore[arg-type]
    )


def _number(query: Mapping[str, str], name: str, kind: Callable[[str], Any]) -> Any:
    text = query.get(name)
    if not text:
        return None
    try:
        return kind(text)
    except ValueError as error:
        raise UserError(f"{name}={text!r} is not a number") from error


def _link(path: str, query: Mapping[str, str], **changes: object) -> str:
    return f"{path}?{urlencode({**query, **{name: str(value) for name, value in changes.items()}})}"
