"""The thread that empties the outbox into a sink, in order, whatever the sink's server does.

    outbox ──read──► sink.deliver([events]) ──► outbox.acknowledge(last event)
                       │ SinkUnavailable: wait (doubling, up to a limit), try the same events again, for ever
                       └ EventRefused: that one event is set aside in `refused.jsonl` with the reason, the rest goes on

Nothing here can stop or slow the run: the run appends to the outbox and goes on, and what is not delivered when it ends
is delivered by the next start. An event is acknowledged after its delivery, so a death in between delivers it twice;
sinks make that harmless.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentfly_lib.tracking.outbox import Event, Outbox

__all__ = ["Backoff", "EventRefused", "Sender", "Sink", "SinkUnavailable"]

_logger = logging.getLogger(__name__)


class SinkUnavailable(Exception):
    """The server cannot be reached or cannot work now; the same events may succeed later."""


class EventRefused(Exception):
    """The server is well and will never take this event."""

    def __init__(self, event: Event, reason: str) -> None:
        super().__init__(reason)
        self.event = event
        self.reason = reason


class Sink(Protocol):
    """Where events go. Used by the sender's thread only."""

    def deliver(self, events: Sequence[Event]) -> Event:
        """Deliver some of `events`, from the first on and without a gap; returns the last one delivered.

        Must be harmless to repeat. Raises `SinkUnavailable` or `EventRefused` (for the first event not yet delivered).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds between tries while the server is away: doubled from `first` up to `limit`."""

    first: float = 0.5
    limit: float = 30.0

    def seconds(self, failures: int) -> float:
        """Pause after so many failures in a row (1 or more)."""
        return min(self.limit, self.first * 2.0 ** min(failures - 1, 16))


class Sender:
    """One background thread per outbox. `wake` after an append; `close` at the end."""

    def __init__(
        self,
        outbox: Outbox,
        sink: Callable[[], Sink],
        *,
        refused_file: Path,
        backoff: Backoff | None = None,
        linger_seconds: float = 0.2,
        batch_events: int = 256,
    ) -> None:
        """`sink` is called in the thread, at the first event: what it imports and connects to costs the run nothing.

        The thread waits `linger_seconds` after the first new event, so that all of a step goes in one batch.
        """
        self._outbox = outbox
        self._make_sink = sink
        self._sink: Sink | None = None
        self._refused_file = refused_file
        self._backoff = backoff or Backoff()
        self._linger_seconds = linger_seconds
        self._batch_events = batch_events
        self._news = threading.Event()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-sender", daemon=True)
        self._failures = 0
        self.refused = 0
        """Events that the server will never take."""

    def start(self) -> None:
        """Start the thread; what is still in the outbox from an earlier process goes first."""
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """There is something new in the outbox."""
        self._news.set()

    def close(self, timeout: float) -> bool:
        """Deliver what is left for at most `timeout` seconds; whether all of it was.

        A thread that hangs in a request is left behind: it is a daemon, acknowledges nothing any more, and ends when
        its request does.
        """
        self._closing.set()
        self._news.set()
        self._thread.join(timeout)
        self._abandoned.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._abandoned.is_set():
            self._news.wait()
            self._news.clear()
            self._closing.wait(self._linger_seconds)
            try:
                drained = self._drain()
            except Exception:  # the last line of defence: tracking must never end a run, nor its own thread
                _logger.exception("the tracking thread met an error of its own; it tries again")
                drained = False
            if drained:
                if self._closing.is_set():
                    return
                continue
            self._failures += 1
            # News does not cut the pause short, else a busy run would hammer a server that is down.
            self._closing.wait(self._backoff.seconds(self._failures))
            if self._closing.is_set():
                self._abandoned.wait(self._backoff.first)
            self._news.set()

    def _drain(self) -> bool:
        """Deliver until the outbox is empty; False if the server went away."""
        while not self._abandoned.is_set() and (events := self._outbox.read(self._batch_events)):
            try:
                if self._sink is None:
                    self._sink = self._make_sink()
                last = self._sink.deliver(events)
            except SinkUnavailable as error:
                if not self._failures:
                    _logger.warning("tracking is interrupted, %d events are kept: %s", self._outbox.pending(), error)
                return False
            except EventRefused as refusal:
                self._set_aside(refusal)
                last = refusal.event
            if self._abandoned.is_set():
                return False
            if self._failures:
                _logger.info("tracking goes on after %d failed tries", self._failures)
                self._failures = 0
            self._outbox.acknowledge(last)
        return True

    def _set_aside(self, refusal: EventRefused) -> None:
        self.refused += 1
        _logger.warning(
            "the tracking server refuses event %d (%s), which is set aside in %s: %s",
            refusal.event.sequence,
            refusal.event.kind,
            self._refused_file,
            refusal.reason,
        )
        record = {
            "sequence": refusal.event.sequence,
            "kind": refusal.event.kind,
            "reason": refusal.reason,
            "payload": refusal.event.payload,
        }
        with self._refused_file.open("a") as file:
            file.write(json.dumps(record) + "\n")
