"""Collections whose tools need resources: pools over many chains, and a Docker engine that dies in the middle."""

from __future__ import annotations

import asyncio
import re
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from agentfly_lib.errors import EngineError, InfrastructureError
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.resources import PoolLimits, ResourceEngine
from agentfly_lib.resources.docker import ContainerSpec
from agentfly_lib.resources.docker_engine import docker_engine
from agentfly_lib.rollout.stages import is_transient
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import iter_groups, read_rollout_manifest
from agentfly_lib.tools import Tool, ToolContext, tool
from agentfly_lib.types import FailureKind, Trajectory
from tests.resources.fakes import Fake, FakeSpec, World
from tests.resources.host_image import host_image
from tests.resources.own_engine import own_engine


def stored(path) -> dict[str, Trajectory]:
    parts = iter_groups(StepDirectory(path), read_rollout_manifest(StepDirectory(path)))
    return {each.id: each for _, groups in parts for group in groups for each in group.trajectories}


def agent_with(world: SimpleNamespace, *tools: Tool):
    return world.CharacterAgent(tools={each.name: each for each in tools})


async def test_chains_wait_for_each_other_and_say_how_long(world, tmp_path):
    fakes = World(lambda what, number: 0.01 if what == "begin" else 0.0)
    spec = FakeSpec(fakes, PoolLimits(cap=2))

    @tool(needs=spec)
    async def act(context: ToolContext) -> str:
        """Act."""
        fake: Fake = context.resources[spec]
        await asyncio.sleep(0.005)
        assert fake.episode is not None
        assert fake.episode.startswith(context.trajectory_id + " ")
        return fake.episode

    asked = world.problems(6)
    collected = await world.gather(
        world.scripted(world.call("act"), world.call("act"), "done"),
        asked,
        world.open_store(tmp_path, asked),
        agent=agent_with(world, act),
    )
    trajectories = stored(tmp_path)
    assert len(trajectories) == 12
    assert not [each.failure for each in trajectories.values() if each.failure]
    assert (fakes.most, len(fakes.begun), fakes.alive) == (2, 12, 0)
    waited = [each.metrics["resource_wait_seconds"] for each in trajectories.values()]
    assert min(waited) > 0
    assert max(waited) > 0.05, "the last of them waits for five others"
    assert collected.resources["resources/lent/count"] == 12
    assert collected.resources["resources/wait_seconds/max"] == pytest.approx(max(waited), abs=0.05)


@pytest.mark.parametrize(
    ("longest_wait", "script", "message"),
    [
        (0.05, ["act"], r"no FakeSpec \(1 of 1 in use, .* 1 waiting\) within 0\.05 s"),
        # A call before it has used up a part of the chain's time, so that waiting ends with the chain's.
        (
            600.0,
            ["slow", "act"],
            r"g/0 was not done after its limit of 0\.3 s: it was waiting for FakeSpec \(1 of",
        ),
    ],
)
async def test_waiting_for_a_resource_is_no_failure_of_the_tool(world, monkeypatch, longest_wait, script, message):
    """What is not to be had now may be had on another try, where a slow tool would be as slow again."""
    spec = FakeSpec(World(), PoolLimits(cap=1))

    @tool
    async def slow() -> str:
        """Take time."""
        await asyncio.sleep(0.1)
        return "done"

    @tool(needs=spec)
    async def act() -> str:
        """Act."""
        return "acted"

    agent = agent_with(world, act, slow)
    monkeypatch.setattr("agentfly_lib.rollout.chain.WAIT_SECONDS", longest_wait)
    limits = replace(world.LIMITS, timeout_seconds=30.0 if longest_wait < 1 else 0.3)
    async with ResourceEngine() as engine, engine.lease(spec, trajectory="another"):
        generate = world.scripted(*map(world.call, script))
        trajectory = await world.run(generate, agent, limits=limits, resources=engine)
    failure = trajectory.failure
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert is_transient(failure)
    assert re.search(message, failure.message), failure.message


async def test_an_engine_that_is_given_stays_open(world, tmp_path):
    spec = FakeSpec(World(), PoolLimits(warm=1))

    @tool(needs=spec)
    async def act() -> str:
        """Act."""
        return "acted"

    asked = world.problems(1)
    async with ResourceEngine() as engine:
        store = world.open_store(tmp_path, asked)
        generate = world.scripted(world.call("act"), "done")
        await world.gather(generate, asked, store, agent=agent_with(world, act), resources=engine)
        assert spec.world.alive
    assert not spec.world.alive


async def test_what_cannot_be_made_ends_a_collection_without_hammering(world, tmp_path):
    fakes = World(lambda what, number: -0.001 if what == "create" else 0.0)
    spec = FakeSpec(fakes, PoolLimits(cap=4))

    @tool(needs=spec)
    async def act() -> str:
        """Act."""
        return "acted"

    asked = world.problems(100)
    with pytest.raises(EngineError, match=r"infrastructure failures in a row.*resource:FakeSpec"):
        await world.gather(
            world.scripted(world.call("act"), "done"),
            asked,
            world.open_store(tmp_path, asked),
            agent=agent_with(world, act),
            config=world.config(max_consecutive_failures=8),
        )
    assert next(fakes.numbers) < 12


@pytest.mark.container
@pytest.mark.slow
async def test_an_engine_killed_in_the_middle_costs_what_needed_it(world, tmp_path, monkeypatch):
    """Chains in a container fail as infrastructure, others go on; a later start of the engine serves and cleans up."""
    with own_engine(tmp_path, monkeypatch) as own:
        image = host_image(docker_engine().client)
        spec = ContainerSpec(image=image, memory_mib=64, disk_mib=8, pool=PoolLimits(cap=4))

        @tool(needs=spec)
        async def work(context: ToolContext) -> str:
            """Work for a while in a container."""
            working.append(context.trajectory_id)
            done = await context.resources[spec].run(["sh", "-c", "sleep 0.2; echo worked"], seconds=30)
            return done.stdout

        def script(group: str, chain: int, turn: int) -> str:
            index = int(group.split("-")[1])
            return "done" if turn else world.call("work" if index < 8 else "count")

        async def wait_for_the_end(request) -> None:
            """Chains without a container go on until after the engine has died."""
            if int(request.request_id.split("/")[0].split("-")[1]) >= 8:
                await died.wait()

        async def kill() -> None:
            await world.until(lambda: len(working) >= 6)
            await asyncio.to_thread(own.kill)
            died.set()

        working: list[str] = []
        died = asyncio.Event()
        asked = world.problems(16)
        generate: ScriptedGenerate = world.by_place(script, delay=wait_for_the_end)
        killer = asyncio.ensure_future(kill())
        store = world.open_store(tmp_path / "run", asked)
        async with ResourceEngine(run="outage") as engine:
            await world.gather(
                generate,
                asked,
                store,
                agent=agent_with(world, work, world.count),
                config=world.config(retries=0, max_consecutive_failures=1000),
                resources=engine,
            )
            await killer
            trajectories = stored(tmp_path / "run")
            failed = {name: each.failure for name, each in trajectories.items() if each.failure}
            assert len(trajectories) == 32
            assert failed
            assert {name.split("-")[1].split("/")[0] for name in failed} <= {str(index) for index in range(8)}
            assert {failure.kind for failure in failed.values()} == {FailureKind.INFRASTRUCTURE}
            assert all(failure.where.startswith(("resource:", "tool:work")) for failure in failed.values())
            assert engine.metrics()["resources/failed/count"] < 12, "the dead engine was hammered"

            await asyncio.to_thread(own.start)
            async with engine.lease(spec, trajectory="later") as container:
                assert (await container.run(["sh", "-c", "echo back"])).stdout == "back\n"
        async with ResourceEngine(run="outage") as engine, engine.lease(spec, trajectory="a") as container:
            await world.until(lambda: [left.id for left in docker_engine().left()] == [container.id])


@pytest.mark.container
async def test_an_engine_without_disk_space_says_so(tmp_path, monkeypatch):
    with own_engine(tmp_path, monkeypatch, disk_mib=160) as own:
        spec = ContainerSpec(image=host_image(docker_engine().client), memory_mib=64, disk_mib=8)
        subprocess.run(["dd", "if=/dev/zero", f"of={own.data}/full", "bs=4k"], capture_output=True, check=False)
        async with ResourceEngine() as engine:
            with pytest.raises(InfrastructureError, match=r"out of disk space.*docker system prune") as caught:
                async with engine.lease(spec, trajectory="a"):
                    pytest.fail("there was room")
            assert caught.value.where == "resource:docker"
            (own.data / "full").unlink()
            async with engine.lease(replace(spec, cpus=0.5), trajectory="a") as container:
                assert (await container.run(["sh", "-c", "echo fine"])).stdout == "fine\n"
