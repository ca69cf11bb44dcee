"""An environment over HTTP, for a container or another machine: each session is a host process of its own.

    POST   /sessions                {}                  {"session": ...}
    POST   /sessions/ID/reset       {"columns": {...}}  {"observation": ...}
    POST   /sessions/ID/step        {"action": ...}     {"observation": ..., "reward": ..., "done": ..., ...}
    DELETE /sessions/ID
    GET    /health                                      {"kind": ..., "settings": {...}, "sessions": ..., "cap": ...}

A failure of the environment is {"failed": "..."} with status 502, and ends the session; one that cannot start, or for
which there is no room, is 503. A session that nobody has used for ten minutes is ended. Bodies are JSON, and say so;
requests of web pages, and to names that are not the server's, are refused (see `callers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import uuid4

from aiohttp import web

from agentfly_lib.envs import wire
from agentfly_lib.envs.callers import programs_only
from agentfly_lib.envs.instances import EnvironmentInstance
from agentfly_lib.envs.spec import EnvironmentSpec, environment_spec
from agentfly_lib.errors import ConfigError, EnvironmentFailure, InfrastructureError

__all__ = ["application", "serve"]

logger = logging.getLogger(__name__)

IDLE_SECONDS = 600.0
_LOOK_SECONDS = 5.0


@dataclass
class _Session:
    instance: EnvironmentInstance
    used: float = field(default_factory=monotonic)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Sessions:
    """The handlers, and what is open."""

    def __init__(self, spec: EnvironmentSpec, cap: int, idle_seconds: float) -> None:
        self._spec = spec
        self._cap = cap
        self._idle_seconds = idle_seconds
        self._open: dict[str, _Session] = {}
        self._starting = 0

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "kind": self._spec.kind.name,
                "settings": self._spec.settings.model_dump(mode="json"),
                "sessions": len(self._open),
                "cap": self._cap,
            }
        )

    async def start(self, _: web.Request) -> web.Response:
        if len(self._open) + self._starting >= self._cap:
            return _failed(503, f"all {self._cap} sessions are in use")
        self._starting += 1
        try:
            instance = await self._spec.create()
        except InfrastructureError as error:
            return _failed(503, str(error))
        finally:
            self._starting -= 1
        identity = uuid4().hex
        self._open[identity] = _Session(instance)
        return web.json_response({"session": identity})

    async def reset(self, request: web.Request) -> web.Response:
        session, asked = self._session(request), await _object(request)
        if not isinstance(asked.get("columns"), dict):
            return _failed(400, 'send {"columns": {...}}')
        async with self._in_use(request, session):
            return web.json_response({"observation": await session.instance.reset(asked["columns"])})

    async def step(self, request: web.Request) -> web.Response:
        session, asked = self._session(request), await _object(request)
        if not isinstance(asked.get("action"), str):
            return _failed(400, 'send {"action": "..."}')
        async with self._in_use(request, session):
            return web.json_response(wire.told(await session.instance.step(asked["action"])))

    async def end(self, request: web.Request) -> web.Response:
        session = self._session(request)
        del self._open[request.match_info["session"]]
        async with session.turn:
            await session.instance.close()
        return web.json_response({})

    async def life(self, _: web.Application) -> AsyncIterator[None]:
        """Ends what is idle, and everything at the end."""
        sweeping = asyncio.ensure_future(self._sweep())
        yield
        sweeping.cancel()
        left, self._open = list(self._open.values()), {}
        await asyncio.gather(*(session.instance.close() for session in left), return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._idle_seconds))
            for identity, session in list(self._open.items()):
                if not session.turn.locked() and monotonic() - session.used > self._idle_seconds:
                    logger.warning("session %s was not used for %g s and is ended", identity, self._idle_seconds)
                    del self._open[identity]
                    await session.instance.close()

    def _session(self, request: web.Request) -> _Session:
        found = self._open.get(request.match_info["session"])
        if found is None:
            raise web.HTTPNotFound(
                text=json.dumps({"failed": "there is no such session"}), content_type="application/json"
            )
        return found

    @contextlib.asynccontextmanager
    async def _in_use(self, request: web.Request, session: _Session) -> AsyncIterator[None]:
        async with session.turn:
            try:
                yield
            except EnvironmentFailure as error:
                self._open.pop(request.match_info["session"], None)
                await session.instance.close()
                raise web.HTTPBadGateway(
                    text=json.dumps({"failed": str(error)}), content_type="application/json"
                ) from error
            finally:
                session.used = monotonic()


def application(
    spec: EnvironmentSpec, *, cap: int, address: str = "127.0.0.1", idle_seconds: float = IDLE_SECONDS
) -> web.Application:
    """The server, as an aiohttp application that is to listen on `address`."""
    sessions = _Sessions(spec, cap, idle_seconds)
    app = web.Application(client_max_size=wire.MAX_LINE_BYTES, middlewares=[programs_only(address)])
    app.add_routes(
        [
            web.get("/health", sessions.health),
            web.post("/sessions", sessions.start),
            web.post("/sessions/{session}/reset", sessions.reset),
            web.post("/sessions/{session}/step", sessions.step),
            web.delete("/sessions/{session}", sessions.end),
        ]
    )
    app.cleanup_ctx.append(sessions.life)
    return app


def serve(kind: str, settings: str, *, address: str, port: int, cap: int) -> None:
    """Serves until it is told to end. Raises `ConfigError` for a name or settings that cannot be."""
    try:
        values = json.loads(settings)
    except ValueError as error:
        raise ConfigError(f"--settings is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError("--settings is a JSON object")
    spec = environment_spec(kind, values)
    spec.check()
    web.run_app(application(spec, cap=cap, address=address), host=address, port=port, print=None)


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        return wire.load(await request.read())
    except wire.Nonsense as error:
        raise web.HTTPBadRequest(
            text=json.dumps({"failed": f"send JSON: {error}"}), content_type="application/json"
        ) from error


def _failed(status: int, message: str) -> web.Response:
    return web.json_response({"failed": message}, status=status)
