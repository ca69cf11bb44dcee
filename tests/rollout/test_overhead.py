"""What a chain in flight takes of memory, at the size of a large step. CPU time is measured in `benchmarks/`."""

import asyncio
import gc
import tracemalloc

from agentfly_lib.inference import Generation
from agentfly_lib.types import FinishReason

GROUP, TURNS = 8, 3


class Instant:
    """An engine that costs nothing: two calls of a tool, then an answer, 60 tokens each."""

    def __init__(self, world, *, wait: asyncio.Event | None = None) -> None:
        asked = [*world.encode(world.call("count").ljust(59)), world.STOP]
        answer = [ord("4")] * 59 + [world.STOP]
        self.replies = [asked, asked, answer]
        self.logprobs = [-0.5] * 60
        self.calls = 0
        self.waiting = 0
        self.wait = wait

    async def generate(self, request) -> Generation:
        self.calls += 1
        turn = int(request.request_id.rsplit("/", 1)[1])
        if self.wait is not None and turn == 2:
            self.waiting += 1
            await self.wait.wait()
        else:
            await asyncio.sleep(0)
        return Generation(
            token_ids=self.replies[turn], logprobs=self.logprobs, finish=FinishReason.STOP, policy_version=0
        )


def collection(world, path, chains):
    asked = world.problems(chains // GROUP)
    config = world.config(chains=GROUP, max_concurrency=chains, flush_seconds=0.25)
    return asked, world.open_store(path, asked, chains=GROUP), config


async def test_a_chain_in_flight_takes_a_few_kilobytes(world, tmp_path):
    chains = 200
    asked, store, config = collection(world, tmp_path, chains)
    gate = asyncio.Event()
    engine = Instant(world, wait=gate)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        task = asyncio.create_task(world.gather(engine, asked, store, config=config))
        await world.until(lambda: engine.waiting == chains, seconds=60)
        gc.collect()
        kilobytes = (tracemalloc.get_traced_memory()[0] - before) / 1024 / chains
    finally:
        tracemalloc.stop()
    gate.set()
    await task
    assert kilobytes < 30
