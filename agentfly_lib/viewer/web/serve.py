"""`agentfly view`: serves the viewer on the loopback interface until Ctrl-C, or writes one page as a file."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from agentfly_lib.chat import ChatFormat
from agentfly_lib.errors import AgentFlyError, UserError
from agentfly_lib.store.atomic import write_bytes
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.viewer.chat import run_chat
from agentfly_lib.viewer.web.app import Viewer, viewer_app

__all__ = ["export_group", "open_viewer", "serve_viewer"]

logger = logging.getLogger(__name__)

_LOCAL = ("127.0.0.1", "localhost", "::1")


def open_viewer(run: Path, *, other: Path | None = None) -> Viewer:
    """The viewer of a run; tokens are decoded with the run's own model, if it is still there."""
    return Viewer(run, chat=_chat(RunDirectory(run)), other=other)


def serve_viewer(run: Path, *, host: str, port: int, other: Path | None = None) -> None:
    """Serves the pages until Ctrl-C. Raises `UserError` if the port is taken."""
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"port {port} of {host} cannot be used ({error.strerror}); name another with --port") from error
    hosts = _LOCAL if host in _LOCAL else ("*",)
    app = viewer_app(open_viewer(run, other=other), hosts=hosts)
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listener.getsockname()[1]}  shows {run}; Ctrl-C stops it", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


def export_group(run: Path, group_id: str, path: Path, *, colour: str = "mask") -> None:
    """Writes one group as a page of its own, which needs neither server nor network. Raises `UserError`."""
    step = group_id.partition("-")[0]
    if not step.isdigit():
        raise UserError(f"{group_id!r} is not the name of a group, such as 000002-00000")
    write_bytes(path, open_viewer(run).group(int(step), group_id, {"colour": colour}).encode())


def _chat(directory: RunDirectory) -> ChatFormat | None:
    try:
        return run_chat(directory)
    except AgentFlyError as error:
        logger.warning("tokens are not shown: %s", error)
        return None
