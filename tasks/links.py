"""What Prefect remembers of finished task runs, for the arrows between them on its page.

It keeps an entry for each value that a task of a flow run has returned until the flow run ends, with a state of several
kilobytes. A step hands its values on within a few steps, and a run may have any number of steps.
"""

from __future__ import annotations

from typing import Any

from prefect.context import FlowRunContext

__all__ = ["forget_old_links"]

_KEPT = 100
"""Entries; a step makes about ten."""


def forget_old_links() -> None:
    """Drops all but the newest entries of this flow run. A task that is given an older value is shown without arrow."""
    context = FlowRunContext.get()
    if context is None:
        return
    _keep_newest(context.run_results)
    _keep_newest(context.task_run_assets)


def _keep_newest(entries: dict[Any, Any]) -> None:
    for old in list(entries)[:-_KEPT]:
        del entries[old]
