"""The viewer's pages over HTTP: which address shows what, and what a browser may do with it (nothing but show it)."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from agentfly_lib.errors import AgentFlyError, UserError
from agentfly_lib.viewer.web.catalog import one_look
from agentfly_lib.viewer.web.export import exported, write_jsonl, write_parquet
from agentfly_lib.viewer.web.pages import Viewer, read_filters
from agentfly_lib.visible import visible

__all__ = ["Viewer", "viewer_app"]

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MEDIA_TYPES = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}


def viewer_app(viewer: Viewer, *, hosts: Sequence[str]) -> Starlette:
    """The pages as an ASGI application that answers to these host names only."""

    def pairs(request: Request) -> Response:
        return _html(viewer.pairs(request.query_params))

    def pair(request: Request) -> Response:
        return _html(viewer.pair(request.path_params["problem"], request.query_params))

    routes: list[BaseRoute] = [Route("/pairs", _page(pairs)), Route("/pairs/{problem:path}", _page(pair))]
    if viewer.other is not None:
        routes.append(Mount("/other", routes=_run_routes(viewer, "/other")))
    return Starlette(
        routes=[*routes, *_run_routes(viewer, "")],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
    )


def _run_routes(viewer: Viewer, prefix: str) -> list[BaseRoute]:
    """The pages of one run."""

    def index(request: Request) -> Response:
        answer = _html(viewer.index(request.query_params, prefix=prefix))
        # what decodes tokens takes seconds to load, for which neither the list waits nor, later, who has read it
        answer.background = BackgroundTask(lambda: viewer.shelf(prefix).chat)
        return answer

    def group(request: Request) -> Response:
        place = request.path_params
        return _html(
            viewer.group(
                place["step"],
                place["group"],
                request.query_params,
                chain=place.get("chain"),
                split=place["split"],
                prefix=prefix,
            )
        )

    def picture(request: Request) -> Response:
        place = request.path_params
        data, kind = viewer.picture(place["split"], place["step"], place["group"], place["digest"], prefix=prefix)
        return Response(data, media_type=kind, headers=_HEADERS)

    def export(request: Request) -> Response:
        return _export(viewer, request, prefix)

    return [
        Route("/", _page(index)),
        Route("/export.{kind}", _page(export)),
        Route("/pictures/{split}/{step:int}/{group}/{digest}", _page(picture)),
        Route("/{split}/{step:int}/{group}", _page(group)),
        Route("/{split}/{step:int}/{group}/{chain:int}", _page(group)),
    ]


def _export(viewer: Viewer, request: Request, prefix: str) -> Response:
    """The trajectories that the query leaves, as a file."""
    shelf, kind, query = viewer.shelf(prefix), request.path_params["kind"], request.query_params
    rows = exported(shelf, read_filters(query), kind, query)
    name = f"{shelf.name}-{rows[0].group_id}" if query.get("group") else f"{shelf.name}-trajectories"
    save = {"Content-Disposition": f'attachment; filename="{_file_name(name)}.{kind}"'}
    if kind == "html":
        from agentfly_lib.viewer.web.alone import selection_html  # loads what evaluations need

        page, _ = selection_html(shelf, rows, colour=query.get("colour") or "mask")
        return HTMLResponse(page, headers=_HEADERS | save)
    handle, path = tempfile.mkstemp(prefix="agentfly-export-", suffix=f".{kind}")
    os.close(handle)
    try:
        (write_jsonl if kind == "jsonl" else write_parquet)(Path(path), shelf, rows)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
    return FileResponse(
        path, media_type=_MEDIA_TYPES[kind], headers=_HEADERS | save, background=BackgroundTask(os.unlink, path)
    )


def _file_name(text: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in text)


def _html(text: str) -> Response:
    # what a model wrote may hold half of a surrogate pair, which no encoding carries
    return HTMLResponse(text.encode(errors="replace"), headers=_HEADERS)


def _page(make: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    @functools.wraps(make)
    async def answer(request: Request) -> Response:
        if _wanted_by_another_site(request):
            said = "another site's page asked for this; type the address yourself"
            return Response(said, status_code=403, media_type="text/plain", headers=_HEADERS)
        try:
            with one_look():
                return await run_in_threadpool(make, request)
        except UserError as error:
            return Response(visible(str(error)), status_code=404, media_type="text/plain", headers=_HEADERS)
        except AgentFlyError as error:
            return Response(visible(str(error)), status_code=500, media_type="text/plain", headers=_HEADERS)

    return answer


def _wanted_by_another_site(request: Request) -> bool:
    """A page of another site would have this made, by an image of it for example. A link to one of our pages may be
    followed from there, but not one to an export, which takes long and does not show who asked for it.
    """
    followed = request.headers.get("sec-fetch-dest") == "document" and not request.path_params.get("kind")
    return request.headers.get("sec-fetch-site") == "cross-site" and not followed
