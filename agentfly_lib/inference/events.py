"""Server-sent events (WHATWG HTML, section 9.2), as servers that speak OpenAI's protocol use them."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["EventReader"]


class EventReader:
    """Takes an event stream apart, wherever it was cut: also inside a line end or a character."""

    def __init__(self) -> None:
        self.done = False
        """Set by the event `[DONE]`, which is the last one."""
        self._rest = bytearray()
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of each event that ends in `chunk`."""
        self._rest += chunk
        if b"\n" not in chunk:
            return
        *lines, rest = self._rest.replace(b"\r\n", b"\n").split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            event = self._line(line.decode("utf-8", errors="replace"))
            if event == "[DONE]":
                self.done = True
            if self.done:
                return
            if event is not None:
                yield event

    def _line(self, line: str) -> str | None:
        """The data of the event that the line ends, if it does."""
        if not line:
            event, self._data = "\n".join(self._data), []
            return event or None
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None
