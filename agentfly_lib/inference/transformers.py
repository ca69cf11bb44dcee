"""A Hugging Face model in this process, by `transformers` alone: for machines and models that vLLM does not serve.

One thread owns the model. Requests that are in flight together are decoded together (`DecodeBatch`); what is awaited is
answered from the thread, so any event loop may ask. A request that is cancelled or out of time leaves the batch before
the next token.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentfly_lib.chat.image_reader import ImageReader, reads, vision_token_ids
from agentfly_lib.configs.inference import TransformersConfig
from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference.checks import check_pictures, check_request
from agentfly_lib.inference.decode_batch import DecodeBatch, Row
from agentfly_lib.inference.generate import Delta, Generation, GenerationRequest
from agentfly_lib.inference.relay import relayed
from agentfly_lib.inference.stop_strings import stops_of, text_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["TransformersEngine"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request, and whoever waits for it; cancelled when nobody does any more."""

    row: Row
    future: Future[Generation]
    started: float
    tell: Callable[[Delta], None] | None
    """Told each token, on the engine's thread."""


class TransformersEngine:
    """A `GenerateStream` for any event loop. The model is loaded at the first request."""

    def __init__(
        self,
        model: str | Path,
        config: TransformersConfig | None = None,
        *,
        context_length: int,
        load: Callable[[], PreTrainedModel] | None = None,
    ) -> None:
        """Take a model directory or hub id; `load` makes the model in its place."""
        self.config = config or TransformersConfig()
        self.context_length = context_length
        self._model = model
        self._load = load or self._from_pretrained
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: EngineError | None = None
        self._vocabulary: int | None = None
        folder = Path(model)
        self._reader = ImageReader.of(folder) if reads(folder) else None
        self._banned = vision_token_ids(folder)

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`. Raises `EngineError` too: the model cannot be loaded, or the engine died."""
        return await self._ask(request, None)

    async def generate_stream(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """See `GenerateStream.generate_stream`."""
        return await relayed(lambda tell: self._ask(request, tell), on_delta)

    async def _ask(self, request: GenerationRequest, tell: Callable[[Delta], None] | None) -> Generation:
        self._check(request)
        decode = await asyncio.to_thread(text_decoder, self._model) if request.sampling.stop else None
        if request.images:
            await asyncio.to_thread(check_pictures, request, self._reader)
        row = Row(request, context_length=self.context_length, stop_strings=stops_of(request, decode))
        waiting = _Waiting(row=row, future=Future(), started=time.perf_counter(), tell=tell)
        with self._lock:
            if self._error is not None:
                raise EngineError(str(self._error)) from self._error
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._main, args=(self._inbox,), name="transformers-engine", daemon=True
                )
                self._thread.start()
            self._inbox.put(waiting)
        limit = self.config.request_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(waiting.future)  # cancelled with this task, which the thread sees
        except TimeoutError:
            raise InfrastructureError(
                f"request {request.request_id!r} had no answer within {limit:g} s (request_timeout_seconds)",
                where="generate",
            ) from None

    async def close(self) -> None:
        """End the thread; whoever still waits gets an `InfrastructureError`. A later request loads the model again."""
        with self._lock:
            thread, self._thread, inbox = self._thread, None, self._inbox
            self._inbox, self._error = queue.SimpleQueue(), None
        if thread is not None:
            inbox.put(None)
            await asyncio.to_thread(thread.join, 60.0)

    def _check(self, request: GenerationRequest) -> None:
        check_request(request, context_length=self.context_length)
        if min(request.token_ids) < 0:
            raise ValueError(f"request {request.request_id!r} holds the token {min(request.token_ids)}")

    def _from_pretrained(self) -> PreTrainedModel:
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        device = self.config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        kind = AutoModelForCausalLM if self._reader is None else AutoModelForImageTextToText
        model = kind.from_pretrained(str(self._model), dtype=getattr(torch, self.config.dtype), trust_remote_code=False)
        return model.to(device).eval()  # pyright: ignore[reportArgumentType]

    # On the engine's thread.

    def _main(self, inbox: queue.SimpleQueue[_Waiting | None]) -> None:
        import torch

        waiting: dict[int, _Waiting] = {}
        death: EngineError | None = None
        try:
            model = self._load()
            self._vocabulary = model.get_input_embeddings().num_embeddings  # type: ignore[union-attr]
            with torch.inference_mode():
                self._decode(DecodeBatch(model, reader=self._reader, banned=self._banned), inbox, waiting)
        except Exception as error:
            logger.exception("the transformers engine died")
            death = EngineError(f"the transformers engine died (model {self._model}): {type(error).__name__}: {error}")
            death.__cause__ = error
            with self._lock:
                if inbox is self._inbox:
                    self._error = death
        for item in [*waiting.values(), *_all_of(inbox)]:
            closed = InfrastructureError("the engine was closed", where="generate")
            _fail(item, closed if death is None else EngineError(str(death)))

    def _decode(
        self, batch: DecodeBatch, inbox: queue.SimpleQueue[_Waiting | None], waiting: dict[int, _Waiting]
    ) -> None:
        """Until the inbox says None: take in what waits, give up what nobody wants, sample one token of each row.

        waiting: every request that has no answer, by its row; those not in the batch wait for a place.
        """
        while True:
            idle = not waiting
            if idle and not _take(inbox, waiting, block=True):
                return
            if idle:
                time.sleep(_GATHER_SECONDS)  # whoever asked first has company that asks in the same moment
            if not _take(inbox, waiting, block=False):
                return
            for item in list(waiting.values()):
                if not self._is_servable(item):
                    batch.drop([item.row])
                    del waiting[id(item.row)]
            decoded = {id(row) for row in batch.rows}
            room = self.config.max_sequences - len(decoded)
            joining = [item.row for key, item in waiting.items() if key not in decoded][:room]
            if joining and batch.open:
                batch.admit(joining)
            if batch.rows:
                sampled, done = batch.rows, batch.step()
                for row in sampled:
                    if (tell := waiting[id(row)].tell) is not None:
                        tell(row.token_ids[-1:])
                for row in done:
                    _answer(waiting.pop(id(row)))

    def _is_servable(self, item: _Waiting) -> bool:
        """False for what nobody waits for, and for a token that the model does not have, which is answered."""
        largest = max((*item.row.request.token_ids, *item.row.request.sampling.logit_bias))
        if self._vocabulary is not None and largest >= self._vocabulary:
            _fail(
                item,
                ValueError(
                    f"request {item.row.request.request_id!r} holds token {largest}; the model's vocabulary has "
                    f"{self._vocabulary} entries, from 0"
                ),
            )
        return not item.future.done()


_GATHER_SECONDS = 0.001
"""How long an idle engine waits for more requests once it has one."""


def _answer(item: _Waiting) -> None:
    row = item.row
    assert row.finish is not None
    with suppress(InvalidStateError):  # cancelled in this moment
        item.future.set_result(
            Generation(
                token_ids=row.token_ids,
                logprobs=row.logprobs,
                finish=row.finish,
                policy_version=0,
                seconds=time.perf_counter() - item.started,
            )
        )


def _fail(item: _Waiting, error: Exception) -> None:
    with suppress(InvalidStateError):
        item.future.set_exception(error)


def _take(inbox: queue.SimpleQueue[_Waiting | None], waiting: dict[int, _Waiting], *, block: bool) -> bool:
    """Everything in the inbox (at least one, if told to block); False when it is time to end."""
    while True:
        try:
            item = inbox.get(block=block)
        except queue.Empty:
            return True
        if item is None:
            return False
        waiting[id(item.row)] = item
        block = False


def _all_of(inbox: queue.SimpleQueue[_Waiting | None]) -> list[_Waiting]:
    items: list[_Waiting] = []
    while True:
        try:
            item = inbox.get_nowait()
        except queue.Empty:
            return items
        if item is not None:
            items.append(item)
