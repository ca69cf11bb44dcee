"""What every sandbox can do, whether it is a process behind bubblewrap (`process`) or a container (`docker`).

A sandbox runs commands in `/workspace` and holds files; it is replaced, empty, by the next command if it has died, and
begins anew, empty, for each episode.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from agentfly_lib.errors import SandboxError
from agentfly_lib.resources.conversation import Completed, Conversation, Silent
from agentfly_lib.resources.copying import COPY_BYTES, read_tree, write_tree

__all__ = ["WORKSPACE", "Box", "Sandbox"]

WORKSPACE = "/workspace"
"""Where commands start, and the home directory inside."""
_QUIET_SECONDS = 10.0


class Box(Protocol):
    """One life of a sandbox."""

    conversation: Conversation

    @property
    def dead(self) -> bool: ...

    async def close(self) -> None:
        """Ends everything inside, within a bounded time. A second call does nothing."""
        ...


class Sandbox(ABC):
    """A sandbox that runs commands."""

    python: str
    """The Python interpreter inside."""

    def __init__(self) -> None:
        self.starts = 0
        """How often it was started; each time everything inside begins anew."""
        self._box: Box | None = None
        self._starting = asyncio.Lock()
        self._begun = False
        self._closed = False

    @abstractmethod
    async def _launch(self) -> Box:
        """A new life. If it fails or is cancelled, nothing of it is left."""

    async def start(self) -> None:
        """Brings it up now rather than at the first command."""
        await self._alive()

    async def run(
        self, argv: Sequence[str], *, stdin: str = "", seconds: float = 10.0, max_bytes: int = 1 << 16
    ) -> Completed:
        """Runs a command in `/workspace` until it exits; what it leaves in the background goes on.

        seconds: after this it is killed with all that it started, and with background processes of earlier commands.
        max_bytes: of standard output, and the same of standard error; what comes after is counted and thrown away.

        Raises `SandboxError` if the command cannot be started, or if the sandbox died; `InfrastructureError` if that
        is the doing of what it runs on.
        """
        request = {"op": "run", "argv": list(argv), "stdin": stdin, "seconds": seconds, "max_bytes": max_bytes}
        return await self._ask(request, seconds)

    async def ask(
        self, session: str, argv: Sequence[str], message: str, *, seconds: float = 10.0, max_bytes: int = 1 << 16
    ) -> Completed:
        """Sends one line to a session, which is started by `argv` if it does not run, and waits for one line back.

        The process reads messages from descriptor 3 and writes answers to 4; what it and its children print meanwhile
        is in the result. If it ends or is out of time, `reply` is None and the next call starts it anew.
        """
        if "\n" in message:
            raise ValueError("a message is one line")
        request = {
            "op": "ask",
            "session": session,
            "argv": list(argv),
            "message": message,
            "seconds": seconds,
            "max_bytes": max_bytes,
        }
        return await self._ask(request, seconds)

    async def quieten(self) -> None:
        """Ends all that runs in it; its files stay. Raises `SandboxError` if that cannot be, as beside a service."""
        await self._ask({"op": "quiet"}, _QUIET_SECONDS)

    async def copy_in(self, source: Path, target: str = WORKSPACE) -> None:
        """Copies a file, or what is in a folder, of this machine into the folder `target` of the sandbox.

        Symbolic links are not followed: those that stay inside the copied folder are made again, others are refused.
        Raises `SandboxError` for those, or if it does not fit.
        """
        await write_tree(self, source, target)

    async def copy_out(self, source: str, target: Path, *, max_bytes: int = COPY_BYTES) -> None:
        """Copies a file, or what is in a folder, of the sandbox into the folder `target` of this machine.

        Nothing is ever written outside of `target`, whatever names and links are found inside: links that lead out of
        what is copied, and anything that is neither file nor folder nor link, are refused. max_bytes: of all together.
        Raises `SandboxError` for those; what came before them has been copied.
        """
        await read_tree(self, source, target, max_bytes)

    async def begin(self, episode: str) -> None:
        """Empties it, if it has been used or has died. The token is not needed here."""
        if self._begun and self._box is not None:
            await self._end()
        self._begun = True
        await self._alive()

    async def healthy(self) -> bool:
        """One that has died is too: it is replaced by the next command."""
        return not self._closed

    async def close(self) -> None:
        """Ends everything inside. A second call does nothing."""
        self._closed = True
        async with self._starting:  # one that is just being started ends too
            await self._end()

    async def _ask(self, request: dict[str, Any], seconds: float) -> Completed:
        box = await self._alive()
        try:
            return await box.conversation.ask(request, seconds)
        except Silent:
            await box.close()
            raise

    async def _end(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def _alive(self) -> Box:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        async with self._starting:
            if self._box is None or self._box.dead:
                await self._end()
                self._box = await self._launch()
                self.starts += 1
            return self._box
