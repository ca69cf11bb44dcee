"""A server that speaks OpenEnv, as an environment: its action schema becomes a tool, its sessions are our episodes.

    [agent.environment]
    name = "openenv"
    settings = { url = "http://127.0.0.1:8000", observation = "echoed_message" }

One instance is one WebSocket session (`/ws`), and messages are those of openenv-core 0.3: `reset`, `step` and `close`,
answered by `observation` or `error`. The action's JSON Schema is read from `/schema` before anything begins.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, field_validator

from agentfly_lib.envs.environment import Action, EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.seeds import endless_seeds
from agentfly_lib.errors import ConfigError

__all__ = ["KIND", "OpenEnv", "OpenEnvSettings"]

_MAX_BYTES = 64 * 2**20
_MAX_SCHEMA_BYTES = 4 * 2**20
_SLACK_SECONDS = 5.0
"""The limits of an instance are so much longer than those of its socket, which say better what happened."""
_LISTED = frozenset({"done", "reward", "metadata"})
"""Members that every action or observation has and that are no part of what the model sees."""


class OpenEnvSettings(EnvironmentSettings):
    """Where the server is, and how an agent is told of it."""

    url: str
    """`http://host:port` of the server."""
    observation: str | None = None
    """The member of observations that the model sees; unset: all of them."""
    question: str = "Act in the environment."
    reset: dict[str, Any] = Field(default_factory=dict)
    """More arguments of every reset."""
    seconds: PositiveFloat = 30.0
    """Limit of an answer."""
    seed: int = Field(default=0, ge=0)
    """Of the first training problem; held-out problems have seeds of their own, far away."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write it as http://host:port")
        if parts.username or parts.password:
            raise ValueError("a config is stored and shown, so it takes no user and password")
        return url.rstrip("/")


class OpenEnv:
    """One session. `columns`: `seed`, and `reset`, a table of more arguments, if there are any."""

    def __init__(self, **settings: Any) -> None:
        from websockets.sync.client import connect

        self._settings = OpenEnvSettings(**settings)
        self._socket: Any = connect(
            "ws" + self._settings.url.removeprefix("http") + "/ws",
            open_timeout=self._settings.seconds,
            close_timeout=5.0,
            max_size=_MAX_BYTES,
            proxy=None,
        )

    def reset(self, problem: Mapping[str, Any]) -> str:
        data = {**self._settings.reset, **(problem.get("reset") or {}), "seed": int(problem["seed"])}
        return self._seen(self._ask({"type": "reset", "data": data}))

    def step(self, action: str) -> StepResult:
        try:
            data = json.loads(action)
        except (ValueError, RecursionError) as error:
            return StepResult.refused(f"An action is a JSON object: {error}")
        if not isinstance(data, dict):
            return StepResult.refused("An action is a JSON object.")
        try:
            answer = self._ask({"type": "step", "data": data})
        except _Refused as error:
            return StepResult.refused(f"The environment did not do that: {error}")
        return StepResult(
            observation=self._seen(answer), reward=float(answer.get("reward") or 0.0), done=bool(answer.get("done"))
        )

    def close(self) -> None:
        if self._socket is not None:
            socket, self._socket = self._socket, None
            with contextlib.suppress(OSError, self._closed_by_the_other_end):
                socket.send(json.dumps({"type": "close"}))
            socket.close()

    @property
    def _closed_by_the_other_end(self) -> type[Exception]:
        from websockets.exceptions import ConnectionClosed

        return ConnectionClosed

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the answer. Raises `_Refused` if the server says that it could not."""
        self._socket.send(json.dumps(message))
        seconds = self._settings.seconds
        try:
            answer = json.loads(self._socket.recv(timeout=seconds))
        except TimeoutError as error:
            raise TimeoutError(f"no answer to {message['type']!r} within {seconds:g} s (settings.seconds)") from error
        data = answer.get("data") or {}
        if answer.get("type") == "error":
            raise _Refused(f"{data.get('message', data)} ({data.get('code', 'no code')})")
        if answer.get("type") != "observation" or not isinstance(data.get("observation"), dict):
            raise ValueError(f"{answer.get('type')!r} is not an answer to {message['type']!r}")
        return data

    def _seen(self, data: Mapping[str, Any]) -> str:
        """What the model sees of an observation."""
        observation: dict[str, Any] = data["observation"]
        if self._settings.observation is not None:
            if self._settings.observation not in observation:
                known = ", ".join(observation)
                raise ValueError(f"observations have no {self._settings.observation!r}, they have: {known}")
            value = observation[self._settings.observation]
            return value if isinstance(value, str) else json.dumps(value)
        shown = {name: value for name, value in observation.items() if name not in _LISTED}
        return "\n".join(
            f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in shown.items()
        )


class _Refused(Exception):
    """The server answered that it could not do what was asked of it."""


def _actions(settings: OpenEnvSettings) -> list[Action]:
    """One tool, with the arguments that the server's own schema has."""
    schema = _action_schema(settings)
    properties = {name: each for name, each in schema.get("properties", {}).items() if name not in _LISTED}
    parameters = {key: value for key, value in schema.items() if key not in ("title", "description")}
    parameters |= {"type": "object", "properties": properties}
    return [
        Action(
            name="act",
            description=schema.get("description") or "Do one action.",
            parameters=parameters,
            write=lambda **arguments: json.dumps(arguments),
        )
    ]


def _action_schema(settings: OpenEnvSettings) -> dict[str, Any]:
    """What the server says of its actions. Raises `ConfigError`."""
    import httpx

    address = f"{settings.url}/schema"
    try:
        found = json.loads(_fetched(address, settings.seconds))
    except (httpx.HTTPError, OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"environment 'openenv': no OpenEnv server answers at {address}: {type(error).__name__}: {error}; start it "
            "first"
        ) from error
    schema = found.get("action") if isinstance(found, dict) else None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise ConfigError(f"environment 'openenv': {address} describes no action; is it an OpenEnv server?")
    return schema


def _fetched(address: str, seconds: float) -> bytes:
    """The body of an answer that is neither too large nor too slow."""
    import httpx

    data, deadline = bytearray(), monotonic() + seconds
    plain = {"Accept-Encoding": "identity"}
    with httpx.stream("GET", address, timeout=seconds, trust_env=False, headers=plain) as response:
        response.raise_for_status()
        for piece in response.iter_raw():
            data += piece
            if len(data) > _MAX_SCHEMA_BYTES:
                raise ValueError(f"an answer of more than {_MAX_SCHEMA_BYTES} bytes")
            if monotonic() > deadline:
                raise TimeoutError(f"no whole answer within {seconds:g} s")
    return bytes(data)


def _problems(settings: OpenEnvSettings, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    return endless_seeds(settings.question, settings.seed, split)


def _check(settings: OpenEnvSettings) -> None:
    _action_schema(settings)


KIND = EnvironmentKind(
    name="openenv",
    make=OpenEnv,
    settings=OpenEnvSettings,
    actions=_actions,
    problems=_problems,
    endless=True,
    prompt="You act in an environment. Call the tool `act` with one action at a time.",
    place="thread",
    check=_check,
    start_seconds=lambda settings: settings.seconds + _SLACK_SECONDS,
    step_seconds=lambda settings: settings.seconds + _SLACK_SECONDS,
)
