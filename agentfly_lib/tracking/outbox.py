"""A durable queue of events in the run directory: written by the run, emptied by the sender.

    tracking/outbox.jsonl        one event a line: {"sequence": 7, "time_ms": ..., "kind": ..., "payload": ...}
    tracking/acknowledged.json   how far the file has been delivered

An append is one `write` to a file opened for appending, so that it survives any death of the process at once, and a
death in the middle leaves at most one torn line at the end, which the next opening cuts off. The disk is flushed when
deliveries are acknowledged and at the end, not at every append: only a power failure can cost the last events. What is
delivered is cut off when the queue is opened or closed with nothing else in it, and when it has grown large.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentfly_lib.errors import RunLockedError, ShardError
from agentfly_lib.store.atomic import read_json, write_json

__all__ = ["Event", "Outbox"]

_logger = logging.getLogger(__name__)
_TAIL_BYTES = 1 << 16
_LARGE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing to be told to the tracking server."""

    sequence: int
    """1, 2, 3, ... over the whole life of the run directory."""
    time_ms: int
    """Unix time at which it happened, which is not when it is delivered."""
    kind: str
    payload: dict[str, Any]
    end: int
    """Offset in the file just behind it."""


class Outbox:
    """The queue. Appending is safe from any thread; one consumer reads and acknowledges."""

    def __init__(self, directory: Path) -> None:
        """Open or create the queue in `directory`.

        Raises `RunLockedError` if another tracker has it open: two would number their events alike.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "outbox.jsonl"
        self._acknowledged_path = directory / "acknowledged.json"
        self._lock = threading.Lock()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise RunLockedError(
                f"{self._path} is in use by another tracker; a run has one: close it, or wait for its process to end"
            ) from error
        self._size = self._cut_torn_line()
        self._acknowledged, acknowledged_sequence = self._read_acknowledged()
        self._sequence = max(self._last_sequence(), acknowledged_sequence)
        self._acknowledged_sequence = acknowledged_sequence
        self._cut_delivered()

    def append(self, kind: str, payload: dict[str, Any]) -> int:
        """Add an event; returns its sequence number. Raises `OSError` if the disk refuses it, wholly."""
        time_ms = time.time_ns() // 1_000_000
        with self._lock:
            line = _line(self._sequence + 1, time_ms, kind, payload)
            try:
                written = os.write(self._descriptor, line)
                if written != len(line):
                    raise OSError(28, "no space left for a whole event", str(self._path))
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                raise
            self._size += written
            self._sequence += 1
            return self._sequence

    def pending(self) -> int:
        """Events that have not been acknowledged."""
        with self._lock:
            return self._sequence - self._acknowledged_sequence

    def read(self, limit: int) -> list[Event]:
        """At most `limit` events, in order, behind what has been acknowledged."""
        with self._lock:
            start, end = self._acknowledged, self._size
        events: list[Event] = []
        with self._path.open("rb") as file:
            file.seek(start)
            while len(events) < limit and start < end:
                line = file.readline()
                start += len(line)
                event = _parse(line, start)
                if event is None:
                    _logger.warning("%s has an unreadable event before offset %d; it is passed over", self._path, start)
                else:
                    events.append(event)
        return events

    def acknowledge(self, event: Event) -> None:
        """Everything up to and including `event` has been delivered."""
        os.fsync(self._descriptor)  # a file never says that more was delivered than is there
        write_json(self._acknowledged_path, {"offset": event.end, "sequence": event.sequence})
        with self._lock:
            self._acknowledged = event.end
            self._acknowledged_sequence = event.sequence
            if self._size > _LARGE_BYTES:
                self._cut_delivered()

    def close(self) -> None:
        """Flush to the disk and let go of the file."""
        with self._lock:
            if self._descriptor >= 0:
                self._cut_delivered()
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = -1

    def _cut_delivered(self) -> None:
        """Empties the file if all of it was delivered. Numbers go on; killed in between, the next opening does it."""
        if self._size and self._sequence == self._acknowledged_sequence:
            with suppress(OSError, ShardError):  # a disk that is full: the file stays as it is
                write_json(self._acknowledged_path, {"offset": 0, "sequence": self._sequence})
                os.ftruncate(self._descriptor, 0)
                self._acknowledged = self._size = 0

    def _cut_torn_line(self) -> int:
        size = os.fstat(self._descriptor).st_size
        whole = 0
        for start, block in self._blocks_from_end(size):
            newline = block.rfind(b"\n")
            if newline >= 0:
                whole = start + newline + 1
                break
        if whole < size:
            _logger.warning("%s ended in a torn event of %d bytes, which is dropped", self._path, size - whole)
            os.ftruncate(self._descriptor, whole)
        return whole

    def _last_sequence(self) -> int:
        """Sequence number of the last whole event; 0 if there is none."""
        tail = b""
        for _, block in self._blocks_from_end(self._size):
            tail = block + tail
            for line in reversed(tail.split(b"\n")[1:] if len(tail) < self._size else tail.split(b"\n")):
                event = _parse(line, 0)
                if event is not None:
                    return event.sequence
        return 0

    def _blocks_from_end(self, size: int) -> Iterator[tuple[int, bytes]]:
        end = size
        while end > 0:
            start = max(0, end - _TAIL_BYTES)
            yield start, os.pread(self._descriptor, end - start, start)
            end = start

    def _read_acknowledged(self) -> tuple[int, int]:
        if not self._acknowledged_path.exists():
            return 0, 0
        try:
            content = read_json(self._acknowledged_path)
            offset, sequence = int(content["offset"]), int(content["sequence"])
            if offset < 0 or sequence < 0:
                raise ValueError(f"offset {offset}, sequence {sequence}")
        except (ShardError, KeyError, TypeError, ValueError) as error:
            _logger.warning("%s: %s; everything is delivered again", self._acknowledged_path, error)
            return 0, 0
        if offset > self._size:
            _logger.warning("%s is shorter than what was delivered of it; it goes on from its end", self._path)
        return min(offset, self._size), sequence


def _line(sequence: int, time_ms: int, kind: str, payload: dict[str, Any]) -> bytes:
    event = {"sequence": sequence, "time_ms": time_ms, "kind": kind, "payload": payload}
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _parse(line: bytes, end: int) -> Event | None:
    try:
        content = json.loads(line)
        return Event(
            sequence=content["sequence"],
            time_ms=content["time_ms"],
            kind=content["kind"],
            payload=content["payload"],
            end=end,
        )
    except (ValueError, KeyError, TypeError):
        return None
