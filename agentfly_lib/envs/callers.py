"""Who may ask our HTTP servers: programs, by a name that is the server's. No web page, whoever has opened it.

A browser sends what a page asks of another address too, before it decides whether the page may see the answer, and a
name of the page's own can be made to lead here. So requests of pages are known by what browsers always say with them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from agentfly_lib.loopback import names_of

__all__ = ["programs_only"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def programs_only(address: str) -> Any:
    """A middleware of a server that listens on this address."""
    names = names_of(address)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if names is not None and _without_port(request.host.lower()) not in names:
            raise _refusal(web.HTTPForbidden, f"nothing here is called {request.host[:200]}")
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            raise _refusal(web.HTTPForbidden, "web pages may not ask this server")
        if request.method == "POST" and request.content_type != "application/json":
            raise _refusal(web.HTTPUnsupportedMediaType, "send JSON, and say so: Content-Type: application/json")
        return await handler(request)

    return check


def _without_port(host: str) -> str:
    return host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]


def _refusal(kind: type[web.HTTPError], message: str) -> web.HTTPError:
    return kind(text=json.dumps({"failed": message}), content_type="application/json")
