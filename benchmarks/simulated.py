"""A simulated engine and simulated tools: what an ideal schedule of them costs is known exactly.

The engine decodes all its running sequences one token per step; a step of k sequences takes `base + slope * k` seconds,
and at most `slots` run at the same time, by priority and then first come first served, as vLLM does it. A script
decides beforehand how many tokens each turn has and how long each tool call takes, so all schedules do the same work.
An engine that may look into the script shows what knowing every length would be worth.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

import numpy as np

from agentfly_lib.chat.format import ChatFormat
from agentfly_lib.inference import Generation, GenerationRequest
from agentfly_lib.tools import tool
from agentfly_lib.types import FinishReason, Problem

__all__ = ["DELAYS", "Delays", "Script", "SimulatedEngine", "wait"]

Delays = Literal["none", "long_tailed", "code_like"]
DELAYS: tuple[Delays, ...] = ("none", "long_tailed", "code_like")


@tool(timeout=120)
async def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "done"


@dataclass(frozen=True, kw_only=True, eq=False)
class Script:
    """What every chain will do: `lengths` [N, turns] in tokens, `delays` [N, turns - 1] in seconds."""

    lengths: np.ndarray
    delays: np.ndarray

    @classmethod
    def draw(cls, chains: int, turns: int, delays: Delays, *, seed: int = 0, median_tokens: int = 100) -> Script:
        """Log-normal turn lengths, and tool delays of one kind.

        none: 0 s. long_tailed: log-normal, median 0.2 s, sigma 1.2. code_like: 50 ms in nine of ten calls, else 2-15 s.
        """
        random = np.random.default_rng(seed)
        lengths = np.maximum(random.lognormal(math.log(median_tokens), 0.5, (chains, turns)).astype(int), 60)
        shape = (chains, turns - 1)
        waits = {
            "none": np.zeros(shape),
            "long_tailed": random.lognormal(math.log(0.2), 1.2, shape),
            "code_like": np.where(random.random(shape) < 0.9, 0.05, random.uniform(2, 15, shape)),
        }[delays]
        return cls(lengths=lengths, delays=waits)

    @property
    def problems(self) -> list[tuple[str, Problem]]:
        """One problem for each chain, whose number is its text."""
        return [
            (f"{number:05d}", Problem(id=str(number), messages=({"role": "user", "content": f"Task {number}"},)))
            for number in range(len(self.lengths))
        ]

    def ideal(self, engine: SimulatedEngine, *, engines: int = 1) -> float:
        """Seconds that no schedule can beat: all tokens at the engines' peak rate, or the longest chain on its own."""
        peak = engines * engine.slots / engine.step(engine.slots)
        alone = self.lengths.sum(axis=1) * engine.step(1) + self.delays.sum(axis=1)
        return max(float(self.lengths.sum()) / peak, float(alone.max()))


@dataclass(slots=True, eq=False)
class _Running:
    request: GenerationRequest
    token_ids: Sequence[int]
    future: asyncio.Future[None]
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.token_ids)


class SimulatedEngine:
    """A `Generate` that follows a script. Use as an asynchronous context: its loop runs inside."""

    def __init__(
        self,
        script: Script,
        format: ChatFormat,
        *,
        slots: int = 128,
        base: float = 0.02,
        slope: float = 0.00002,
        longest_first: bool = False,
    ) -> None:
        """longest_first: who has most ahead goes first, by the script, instead of by the priority of requests."""
        self.slots = slots
        self._longest_first = longest_first
        self._base = base
        self._slope = slope
        self._script = script
        self._format = format
        self._filler = list(format.encode(" a"))[-1]
        self._waiting: list[tuple[float, int, _Running]] = []
        self._arrivals = itertools.count()
        self._stirred = asyncio.Event()

    def step(self, running: int) -> float:
        """Seconds of one decoding step of so many sequences."""
        return self._base + self._slope * running

    async def __aenter__(self) -> SimulatedEngine:
        self._loop_task = asyncio.create_task(self._decode())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop_task.cancel()
        await asyncio.wait([self._loop_task], timeout=10)

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Generate.generate`."""
        group, _, turn = request.request_id.split("/")
        chain, turn = int(group), int(turn)
        token_ids = self._tokens(chain, turn, request.stop_token_ids[0])
        running = _Running(request, token_ids, asyncio.get_running_loop().create_future())
        order = -self._left(chain, turn) if self._longest_first else request.priority
        heapq.heappush(self._waiting, (order, next(self._arrivals), running))
        self._stirred.set()
        await running.future
        return Generation(
            token_ids=token_ids, logprobs=[-1.0] * len(token_ids), finish=FinishReason.STOP, policy_version=0
        )

    def _left(self, chain: int, turn: int) -> float:
        """Seconds that a chain needs from this turn on, with nobody beside it."""
        script = self._script
        return float(script.lengths[chain, turn:].sum() * self.step(1) + script.delays[chain, turn:].sum())

    def _tokens(self, chain: int, turn: int, stop: int) -> list[int]:
        length, delays, said = int(self._script.lengths[chain, turn]), self._script.delays[chain], []
        if turn < len(delays):
            call = f'{{"name": "wait", "arguments": {{"seconds": {delays[turn]:.4f}}}}}'
            said = self._format.encode(f"<tool_call>\n{call}\n</tool_call>")
        return [*[self._filler] * max(length - len(said) - 1, 0), *said, stop]

    async def _decode(self) -> None:
        running: list[_Running] = []
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            while self._waiting and len(running) < self.slots:
                running.append(heapq.heappop(self._waiting)[2])
            if not running:
                self._stirred.clear()
                await self._stirred.wait()
                due = loop.time()
                continue
            due += self.step(len(running))  # a late wake-up does not slow the engine down
            await asyncio.sleep(max(due - loop.time(), 0))
            for each in running:
                each.left -= 1
                if each.left == 0 and not each.future.done():
                    each.future.set_result(None)
            running = [each for each in running if each.left > 0 and not each.future.done()]
