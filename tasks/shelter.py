"""Keeps Ctrl-C from Prefect's embedded server.

A terminal sends Ctrl-C to every process of the group in front. Prefect starts its embedded server in ours, so the
server would end at once, and the flow, which still has to report that it was cancelled, would ask for it for more than
a minute. In a session of its own the server hears nothing of the terminal; it ends with us, as all on the leash does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from prefect.server.api import server as embedded

__all__ = ["sheltered_server"]


class _OfItsOwnSession(subprocess.Popen[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"start_new_session": True})


@contextmanager
def sheltered_server() -> Iterator[None]:
    """Within the block Prefect starts its embedded server, if it starts one, out of the terminal's reach."""
    found = vars(embedded)["subprocess"]
    setattr(embedded, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": _OfItsOwnSession}))  # noqa: B010
    try:
        yield
    finally:
        setattr(embedded, "subprocess", found)  # noqa: B010
