"""What is said to a sandbox's keeper, and what it answers, over any pair of byte streams; `keeper` shows the frames."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentfly_lib.errors import SandboxError

__all__ = ["GRACE_SECONDS", "Completed", "Conversation", "Silent", "ending"]

GRACE_SECONDS = 10.0
"""How much later than a command's own limit the sandbox as a whole is given up."""
_MAX_FRAME = 1 << 28
_ANSWER = {
    "stdout": str,
    "stderr": str,
    "cut_stdout": int,
    "cut_stderr": int,
    "exit": int | None,
    "timed_out": bool,
    "reply": str | None,
    "fresh": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a command ended, or what a session answered."""

    stdout: str
    stderr: str
    cut_stdout: int
    """Bytes beyond the limit, which are lost."""
    cut_stderr: int
    exit_code: int | None
    """Negative: the signal that ended it. None: a session that answered and goes on."""
    timed_out: bool
    """It was killed at its time limit, with all that it had started."""
    reply: str | None
    """A session's answer."""
    fresh: bool
    """A session that had not been asked before."""

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        return ending(self.exit_code)

    def shown(self, result: str | None = None) -> str:
        """Standard output and the result as they are, standard error under its own heading, and what was cut."""
        out = self.stdout.rstrip("\n") + _cut(self.cut_stdout)
        err = self.stderr.rstrip("\n") + _cut(self.cut_stderr)
        return "\n".join(part for part in (out, result, f"stderr:\n{err}" if err else "") if part)


def ending(code: int | None) -> str:
    """How a process with this exit code ended, in words; also where its signal has no name, as real-time ones."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _cut(count: int) -> str:
    return f"\n[{count} more bytes were cut]" if count else ""


class Nonsense(ValueError):
    """No frame of a keeper."""


class Silent(SandboxError):
    """A sandbox that gave no answer in time; it is to be ended."""


class Conversation:
    """Requests and the answers that belong to them.

    write: takes the bytes of a request; may fail only with `ConnectionError` or `RuntimeError`, if nobody reads them.
    on_ready: called when the keeper is there, before anything runs inside.
    """

    def __init__(self, write: Callable[[bytes], None], on_ready: Callable[[], None] = lambda: None) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._write = write
        self._on_ready = on_ready
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._incoming = bytearray()

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Completed:
        """Raises `Silent` if there is no answer within `seconds` and a little more, `SandboxError` for an error."""
        self._next += 1
        number = self._next
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({**request, "id": number})
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                found = await answer
        except TimeoutError as error:
            raise Silent(f"the sandbox gave no answer after {seconds + GRACE_SECONDS:g} s and was ended") from error
        except asyncio.CancelledError:
            self._send({"id": 0, "op": "cancel", "target": number})
            raise
        finally:
            self._waiting.pop(number, None)
        if "error" in found:
            raise SandboxError(found["error"])
        return Completed(
            stdout=found["stdout"],
            stderr=found["stderr"],
            cut_stdout=found["cut_stdout"],
            cut_stderr=found["cut_stderr"],
            exit_code=found["exit"],
            timed_out=found["timed_out"],
            reply=found["reply"],
            fresh=found["fresh"],
        )

    def feed(self, data: bytes) -> None:
        """Takes what came back. Raises `ValueError` if it is not what a keeper says: then it is the sandbox's end."""
        self._incoming += data
        while len(self._incoming) >= 4:
            (length,) = struct.unpack_from(">I", self._incoming)
            if length > _MAX_FRAME:
                raise Nonsense(f"a frame of {length} bytes")
            if len(self._incoming) < 4 + length:
                return
            message = _message(bytes(self._incoming[4 : 4 + length]))
            del self._incoming[: 4 + length]
            if "ready" in message:
                if self.ready.done():
                    raise Nonsense("a second greeting")
                self._on_ready()
                self.ready.set_result(None)
            elif (answer := self._waiting.get(message["id"])) is not None and not answer.done():
                answer.set_result(message)

    def fail(self, error: Exception) -> None:
        """It has ended: everyone who waits learns so."""
        for answer in (self.ready, *self._waiting.values()):
            if not answer.done():
                answer.set_exception(error)
        if self.ready.done() and not self.ready.cancelled():
            self.ready.exception()  # whoever started it may have given up

    def _send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._write(struct.pack(">I", len(data)) + data)
        except (ConnectionError, RuntimeError):
            return  # it died: whoever listens to it tells those who wait


def _message(data: bytes) -> dict[str, Any]:
    """What a frame says. Raises `ValueError` if that is neither a greeting nor an answer."""
    try:
        message = json.loads(data)
    except RecursionError as error:
        raise Nonsense("a frame that nests too deeply") from error
    if not isinstance(message, dict):
        raise Nonsense("a frame that is no object")
    if message == {"ready": True}:
        return message
    if not isinstance(message.get("id"), int):
        raise Nonsense("an answer to nothing")
    if not isinstance(message.get("error", ""), str):
        raise Nonsense("an error without words")
    if "error" not in message and not all(isinstance(message.get(name, ...), kind) for name, kind in _ANSWER.items()):
        raise Nonsense("half an answer")
    return message
