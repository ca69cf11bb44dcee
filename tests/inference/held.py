"""What tests do inside an engine's actor so that an update begins while requests are under way, on any machine."""

from __future__ import annotations

from typing import Any


def hold(server: Any) -> None:
    """The engine does nothing more until it is released; what it is told to do waits."""
    import threading

    server.held = threading.Event()
    server._engine._thread.run(lambda engine: server.held.wait(120))


def release(server: Any) -> None:
    server.held.set()


def commands_waiting(server: Any) -> int:
    return server._engine._thread._commands.qsize()
