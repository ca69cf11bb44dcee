"""An engine that dies under the last chains of a collection: they are made again, not recorded as failed."""

import asyncio
import sys

import pytest

from agentfly_lib.errors import EngineError
from agentfly_lib.inference.actor import RayGenerate
from agentfly_lib.refs import EngineRef
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import iter_groups, read_rollout_manifest

pytestmark = pytest.mark.stack

REF = EngineRef(names=("engine-0",), namespace="engine-death", policy_version=0)


class SilentEngine:
    """Takes every request and never answers; an engine's actor as far as `RayGenerate` sees it."""

    def __init__(self):
        self.taken = 0

    async def submit(self, client, requests, given_up):
        self.taken += len(requests)

    async def collect(self, client, wait_seconds):
        await asyncio.sleep(3600)

    async def requests_taken(self):
        return self.taken


@pytest.fixture
def engine(ray_session):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    actor = ray.remote(SilentEngine).options(name=REF.names[0], namespace=REF.namespace, num_cpus=0).remote()
    ray.get(actor.requests_taken.remote(), timeout=60)
    return actor


async def test_a_dead_engine_fails_no_chain_even_if_one_group_alone_was_in_flight(world, tmp_path, engine):
    import ray

    asked = world.problems(3)
    healthy = world.by_place(lambda group, chain, turn: "4" if group < "0-2" else EngineError("not yet"))
    with pytest.raises(EngineError):
        await world.gather(healthy, asked, world.open_store(tmp_path, asked), config=world.config(max_concurrency=2))

    store = world.open_store(tmp_path, asked)
    assert store.missing == ("0-2",)
    collecting = asyncio.ensure_future(
        world.gather(RayGenerate(REF), asked, store, config=world.config(retries=0, max_consecutive_failures=16))
    )
    async with asyncio.timeout(30):
        while await engine.requests_taken.remote() < 2:
            pass
    ray.kill(engine)
    with pytest.raises(EngineError, match=r"'engine-0' is gone.*2 of 3 groups are stored"):
        await asyncio.wait_for(collecting, 30)

    # With a new engine, the one group is made; nothing of the outage stays on disk.
    again = world.by_place(lambda group, chain, turn: "4")
    collected = await world.gather(again, asked, world.open_store(tmp_path, asked))
    assert {request.request_id.split("/")[0] for request in again.requests} == {"0-2"}
    assert collected.manifest.complete
    directory = StepDirectory(tmp_path)
    parts = iter_groups(directory, read_rollout_manifest(directory))
    assert [t.failure for _, groups in parts for group in groups for t in group.trajectories] == [None] * 6
