"""`agentfly view`: serves the viewer on the loopback interface until Ctrl-C, or writes trajectories as a file."""

from __future__ import annotations

import functools
import logging
import socket
from pathlib import Path

from agentfly_lib.errors import AgentFlyError, UserError
from agentfly_lib.loopback import is_loopback, names_of, open_to_all
from agentfly_lib.store.atomic import atomic_file, write_bytes
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.viewer.text import TokenText
from agentfly_lib.viewer.web.app import Viewer, viewer_app
from agentfly_lib.viewer.web.catalog import Filters
from agentfly_lib.viewer.web.export import MOST_EXPORTED, exported, write_jsonl, write_parquet
from agentfly_lib.viewer.web.shelf import Shelf

__all__ = ["export_run", "open_shelf", "open_viewer", "serve_viewer"]

logger = logging.getLogger(__name__)


def open_viewer(run: Path, *, other: Path | None = None) -> Viewer:
    """The viewer of a run, and of another one beside it."""
    return Viewer(open_shelf(run), None if other is None else open_shelf(other, prefix="/other"))


def open_shelf(run: Path, *, prefix: str = "") -> Shelf:
    """One run; its tokens are decoded with its own model, if that is still there."""
    return Shelf(run, load_chat=functools.partial(_chat, run), prefix=prefix)


def serve_viewer(run: Path, *, host: str, port: int, other: Path | None = None) -> None:
    """Serves the pages until Ctrl-C. Raises `UserError` if the port is taken."""
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"port {port} of {host} cannot be used ({error.strerror}); name another with --port") from error
    shown = f"[{host}]" if ":" in host else host
    if not is_loopback(host):
        print(open_to_all(host, "read the run"))
    app = viewer_app(open_viewer(run, other=other), hosts=names_of(host) or ("*",))
    print(f"http://{shown}:{listener.getsockname()[1]}  shows {run}; Ctrl-C stops it", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


def export_run(run: Path, path: Path, *, group: str | None = None, step: int | None = None, count: int = 24) -> int:
    """Writes trajectories to a file of the kind that its name ends in; returns how many it holds.

    Without a group and a step, an HTML file shows the run and a sample of `count` trajectories; `.jsonl` and `.parquet`
    hold all training trajectories, as far as one file goes. Raises `UserError` if there is nothing to write.
    """
    from agentfly_lib.viewer.web.alone import run_html, selection_html  # loads what evaluations need

    kind = path.suffix.removeprefix(".")
    if kind not in MOST_EXPORTED:
        raise UserError(f"{path}: {kind!r} is not a format for exports; use one of {', '.join(MOST_EXPORTED)}")
    shelf = open_shelf(run)
    if kind == "html" and group is None and step is None:
        if not shelf.catalog.table().num_rows:
            raise UserError(f"{run} has no trajectories yet")
        page, shown = run_html(shelf, count=min(count, MOST_EXPORTED["html"]))
        write_bytes(path, page.encode(errors="replace"))
        return shown
    if group is not None and step is None:
        number = group.partition("-")[0]
        if not number.isdigit():
            raise UserError(f"{group!r} is not the name of a group, such as 000002-00000")
        step = int(number)
    rows = exported(shelf, Filters(step=step), kind, None if group is None else {"group": group})
    if kind == "html":
        page, shown = selection_html(shelf, rows)
        write_bytes(path, page.encode(errors="replace"))
    else:
        shown = len(rows)
        with atomic_file(path) as temporary:
            (write_jsonl if kind == "jsonl" else write_parquet)(temporary, shelf, rows)
    if len(rows) == MOST_EXPORTED[kind]:
        logger.warning("%s holds the first %d trajectories; name a --step for others", path, len(rows))
    return shown


def _chat(run: Path) -> TokenText | None:
    from agentfly_lib.viewer.chat import run_chat

    try:
        return run_chat(RunDirectory(run))
    except AgentFlyError as error:
        logger.warning("tokens of %s are not shown: %s", run, error)
        return None
