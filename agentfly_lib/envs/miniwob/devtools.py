"""Chromium's DevTools protocol over a pair of pipes: messages of JSON, each ended by a zero byte.

Pipes instead of the usual port: nobody else on the machine can reach the browser, and its end is seen at once.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = ["BrowserError", "DevTools"]

_CHUNK = 1 << 16
_LONGEST = 1 << 26


class BrowserError(Exception):
    """The browser is gone, does not answer in time, or says that it cannot."""


class DevTools:
    """Blocking calls, one at a time. Each ends within its limit."""

    def __init__(self, read: int, write: int, *, seconds: float) -> None:
        """`read`, `write`: descriptors, which stay the caller's. `seconds`: limit of one call."""
        self._read, self._write, self._seconds = read, write, seconds
        self._number = 0
        self._received = bytearray()
        self._events: deque[Mapping[str, Any]] = deque(maxlen=1000)
        os.set_blocking(read, False)
        os.set_blocking(write, False)

    def call(self, method: str, /, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The method's result. Raises `BrowserError`."""
        number = self.send(method, session, **parameters)
        deadline = time.monotonic() + self._seconds
        while True:
            message = self._receive(deadline, method)
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error'].get('message', 'failed')}")
                return message["result"]

    def send(self, method: str, /, session: str | None = None, **parameters: Any) -> int:
        """Calls without waiting for the result, which is thrown away; returns the call's number."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        data = memoryview(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        deadline = time.monotonic() + self._seconds
        while data:
            self._wait(deadline, method, writing=True)
            try:
                data = data[os.write(self._write, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise BrowserError(f"{method}: the browser has ended") from error
        return self._number

    def wait_for(self, method: str) -> Mapping[str, Any]:
        """The parameters of an event that came since the last `forget`, or comes. Raises `BrowserError`."""
        deadline = time.monotonic() + self._seconds
        while True:
            while self._events:
                event = self._events.popleft()
                if event["method"] == method:
                    return event.get("params", {})
            self._receive(deadline, method)

    def forget(self) -> None:
        """Throws away the events that have come."""
        self._events.clear()

    def _receive(self, deadline: float, what: str) -> Mapping[str, Any]:
        """The next message; events are kept, and a dialog, which would hold up everything, is closed."""
        while (end := self._received.find(b"\0")) < 0:
            self._wait(deadline, what, writing=False)
            try:
                data = os.read(self._read, _CHUNK)
            except BlockingIOError:
                continue
            if not data or len(self._received) > _LONGEST:
                raise BrowserError(f"{what}: the browser {'says too much' if data else 'has ended'}")
            self._received += data
        message = json.loads(self._received[:end])
        del self._received[: end + 1]
        if message.get("method") == "Page.javascriptDialogOpening":
            self.send("Page.handleJavaScriptDialog", message.get("sessionId"), accept=False)
        elif "method" in message:
            self._events.append(message)
        return message

    def _wait(self, deadline: float, what: str, *, writing: bool) -> None:
        left = deadline - time.monotonic()
        reads, writes = ([], [self._write]) if writing else ([self._read], [])
        if left <= 0 or not any(select.select(reads, writes, [], left)):
            raise BrowserError(f"{what}: no answer from the browser within {self._seconds:g} s")
