"""A process of its own for one environment.

    python -m agentfly_lib.envs.host              what `ProcessInstance` starts: `wire` over standard input and output
    python -m agentfly_lib.envs.host --http 8000 --kind webshop --settings '{"num_products": 1000}'

Over HTTP it serves many episodes at once, each in a host of its own (see `envs.serve`); that is what runs in a
container. It listens on the loopback interface unless it is told another address.

What the game prints goes to standard error. The process and all that it has started end when its input closes.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import traceback
from collections.abc import Mapping
from typing import Any, BinaryIO

from agentfly_lib.envs import wire
from agentfly_lib.envs.environment import Environment
from agentfly_lib.envs.watch import watched
from agentfly_lib.errors import UserError, described

__all__ = ["Host", "main", "serve_pipes"]

_MIB = 1 << 20


class Host:
    """One environment, asked by messages."""

    def __init__(self) -> None:
        self._environment: Environment | None = None

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What came of a message; `failed` says what the environment raised."""
        try:
            return self._do(message)
        except BaseException as error:  # noqa: BLE001  the boundary of foreign code, which may raise SystemExit too
            traceback.print_exc(file=sys.stderr)
            return {"failed": described(error)}

    def _do(self, message: Mapping[str, Any]) -> dict[str, Any]:
        match message["op"]:
            case "make":
                self._make(message)
                return {}
            case "reset":
                return {"observation": wire.observation_text(self._made.reset(message["columns"]))}
            case "step":
                return wire.told(self._made.step(message["action"]))
            case "close":
                if self._environment is not None:
                    self._environment.close()
                return {}
            case other:
                raise ValueError(f"there is no operation {other!r}")

    @property
    def _made(self) -> Environment:
        if self._environment is None:
            raise RuntimeError("the environment is not made yet")
        return self._environment

    def _make(self, message: Mapping[str, Any]) -> None:
        from agentfly_lib.envs.registry import get_environment, read_settings

        if limit := message.get("memory_mib"):
            resource.setrlimit(resource.RLIMIT_AS, (limit * _MIB, limit * _MIB))
        kind = get_environment(message["kind"])
        settings = read_settings(kind, message["settings"], where="settings")
        self._environment = kind.make(**{name: getattr(settings, name) for name in kind.settings.model_fields})


def serve_pipes(host: Host, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers line by line until the input ends or it has been closed."""
    while line := requests.readline(wire.MAX_LINE_BYTES + 1):
        message = wire.load(line)
        answer = host.answer(message)
        try:
            reply = wire.dump(answer)
        except wire.Nonsense as error:
            reply = wire.dump({"failed": f"its answer cannot be told: {error}"})
        answers.write(reply)
        answers.flush()
        if message["op"] == "close":
            return


def main(arguments: list[str] | None = None) -> None:
    """Serves pipes or, if asked, HTTP."""
    parser = argparse.ArgumentParser(prog="python -m agentfly_lib.envs.host", description="One environment, served.")
    parser.add_argument("--http", type=int, metavar="PORT", help="serve HTTP on this port")
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (default: %(default)s)")
    parser.add_argument("--kind", help="name of the environment, for HTTP")
    parser.add_argument("--settings", default="{}", help="its settings as JSON, for HTTP")
    parser.add_argument("--cap", type=int, default=8, help="episodes at once, for HTTP (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.http is not None:
        if options.kind is None:
            parser.error("--http needs --kind")
        from agentfly_lib.envs.serve import serve

        try:
            serve(options.kind, options.settings, address=options.address, port=options.http, cap=options.cap)
        except UserError as error:
            parser.error(str(error))
        return
    # The conversation moves to descriptors of its own: what the game reads is nothing, and what it prints is no answer.
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    watched(requests)
    with os.fdopen(requests, "rb") as incoming, os.fdopen(answers, "wb") as outgoing:
        serve_pipes(Host(), incoming, outgoing)


if __name__ == "__main__":
    main()
