"""The thread that owns a vLLM engine: it alone touches the engine, between whose steps it runs commands.

vLLM's own asynchronous engine puts the engine core into a second process. One thread in this process costs half the
memory and a third of the start-up time, decodes as fast, leaves no process behind, and makes a weight update trivially
exclusive: a command runs while no step does.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from agentfly_lib.errors import EngineError

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["EngineThread"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class EngineThread:
    """Builds an engine, then steps it whenever it has unfinished requests.

    `on_outputs` gets the outputs of each step, `on_death` the error that ended the thread; both are called on
    this thread.
    """

    def __init__(
        self,
        build: Callable[[], LLMEngine],
        *,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_death: Callable[[EngineError], None],
    ) -> None:
        self.error: EngineError | None = None
        """Why no command is accepted any more; None while the engine lives."""
        self._build = build
        self._on_outputs = on_outputs
        self._on_death = on_death
        self._commands: queue.SimpleQueue[tuple[Callable[[LLMEngine], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, name="vllm-engine", daemon=True)

    def start(self) -> Future[None]:
        """Start the thread; the future is done when the engine is ready, or holds the `EngineError`."""
        self._started.set_running_or_notify_cancel()  # who gives up waiting does not cancel what the thread sets
        self._thread.start()
        return self._started

    def run(self, command: Callable[[LLMEngine], Result]) -> Future[Result]:
        """Run `command` with the engine, before its next step. What it raises goes into the future, and only there.

        Raises:
            EngineError: the engine is dead or stopped.
        """
        future: Future[Result] = Future()
        with self._gate:
            if self.error is not None:
                raise EngineError(str(self.error))
            self._commands.put((command, future))
        return future

    def stop(self, timeout: float) -> bool:
        """End after the commands given so far; False if the thread still runs after `timeout` seconds."""
        with self._gate:
            if self.error is None:
                self.error = EngineError("the engine was closed")
                self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            engine = self._build()
        except BaseException as error:  # noqa: BLE001 - whatever it was, the starter waits for it
            self._refuse(EngineError(f"the engine cannot start: {type(error).__name__}: {error}"), error)
            assert self.error is not None
            self._started.set_exception(self.error)
            return
        self._started.set_result(None)
        try:
            while self._run_commands(engine):
                outputs = engine.step() if engine.has_unfinished_requests() else []
                if outputs:
                    self._on_outputs(outputs)  # pyright: ignore[reportArgumentType] - no pooling request is ever made
        except Exception as error:
            logger.exception("the engine died")
            self._refuse(EngineError(f"the engine died: {type(error).__name__}: {error}"), error)
        finally:
            assert self.error is not None
            self._drop_commands()
            self._on_death(self.error)
            engine.engine_core.shutdown()

    def _run_commands(self, engine: LLMEngine) -> bool:
        """Run what waits; block for the first command while the engine is idle. False when it is time to end."""
        block = not engine.has_unfinished_requests()
        while True:
            try:
                item = self._commands.get(block=block)
            except queue.Empty:
                return True
            if item is None:
                return False
            command, future = item
            block = False
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = command(engine)
            except Exception as error:  # noqa: BLE001 - it belongs to the caller; the engine goes on
                future.set_exception(error)
            else:
                future.set_result(result)

    def _refuse(self, error: EngineError, cause: BaseException) -> None:
        error.__cause__ = cause
        with self._gate:
            self.error = error
        self._drop_commands()

    def _drop_commands(self) -> None:
        while True:
            try:
                item = self._commands.get_nowait()
            except queue.Empty:
                return
            if item is not None and item[1].set_running_or_notify_cancel():
                item[1].set_exception(EngineError(str(self.error)))
