"""What the file tools share: how a request gets into the sandbox, and what their changes were, for `undo_edit`.

Paths are the sandbox's own. Whatever they name, it is inside: there is nothing of the machine to get out to.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from agentfly_lib.errors import SandboxError
from agentfly_lib.resources import workspace_program
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.sandbox import SandboxSettings, one_at_a_time, sandbox_of

__all__ = ["WorkspaceSettings", "act", "undo"]

MAX_UNDO = 10
"""Changes that can be undone."""
_ANSWER_BYTES = 1 << 22


class WorkspaceSettings(SandboxSettings):
    """Limits of the sandbox in which the files lie."""


async def act(context: ToolContext, settings: WorkspaceSettings, action: str, **arguments: Any) -> ToolResult:
    """Does one thing to the workspace. A change is remembered."""
    async with one_at_a_time(context, "workspace"):
        return await _act(context, settings, action, arguments)


async def undo(context: ToolContext, settings: WorkspaceSettings) -> ToolResult:
    """Takes the last change back."""
    async with one_at_a_time(context, "workspace"):
        history = _changes(context)
        if not history:
            return ToolResult.refused("there is no change left to take back.")
        path, before = history.pop()
        return await _act(context, settings, "restore", {"path": path, "before": before})


async def _act(context: ToolContext, settings: WorkspaceSettings, action: str, arguments: dict[str, Any]) -> ToolResult:
    sandbox = sandbox_of(context, settings.spec)
    done = await sandbox.run(
        [sandbox.python, "-I", "-S", "-c", _program()],
        stdin=json.dumps({"action": action, **arguments}),
        seconds=settings.seconds,
        max_bytes=_ANSWER_BYTES,
    )
    if done.timed_out:
        return ToolResult.refused(f"{action} took longer than {settings.seconds:g} s and was stopped.")
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise SandboxError(f"the sandbox could not do it: {done.stderr.strip()[-300:] or 'no answer'}") from error
    if "error" in answer:
        return ToolResult.refused(answer["error"])
    if "before" in answer:
        history = _changes(context)
        history.append((arguments["path"], answer["before"]))
        del history[:-MAX_UNDO]
    return ToolResult(observation=answer["text"])


def _changes(context: ToolContext) -> list[tuple[str, str | None]]:
    """The trajectory's last changes, newest last: path, and what stood there before (None: nothing)."""
    return context.state.setdefault("workspace_changes", [])


@functools.cache
def _program() -> str:
    return Path(workspace_program.__file__).read_text(encoding="utf-8")
