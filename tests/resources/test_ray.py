"""Resources placed by Ray: used from here as if they were here, and lost with their node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentfly_lib.errors import ConfigError, EnvironmentFailure, InfrastructureError, SandboxError
from agentfly_lib.resources import PoolLimits, ProcessSpec, ResourceEngine
from agentfly_lib.resources.ray import RaySpec

pytestmark = pytest.mark.stack


def small() -> RaySpec:
    return RaySpec(spec=ProcessSpec(memory_mib=256, disk_mib=16, pool=PoolLimits(cap=2)), num_cpus=0.5)


async def test_a_sandbox_on_a_node_does_what_one_here_does(ray_session, sandboxes, tmp_path: Path):
    spec = small()
    spec.check()
    async with ResourceEngine() as engine, engine.lease(spec, trajectory="a") as sandbox:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "file").write_text("42")
        await sandbox.copy_in(tmp_path / "in")
        done = await sandbox.run([sandbox.python, "-c", "print(open('file').read()); open('made', 'w').write('43')"])
        assert done.stdout == "42\n"
        await sandbox.copy_out("/workspace", tmp_path / "out")
        assert (tmp_path / "out" / "made").read_text() == "43"
        assert (await sandbox.run(["sleep", "60"], seconds=0.2)).timed_out
        with pytest.raises(SandboxError, match="No such file"):
            await sandbox.copy_out("/workspace/nothing", tmp_path / "out")
        with pytest.raises(AttributeError, match="has no walk"):
            await sandbox.walk()


async def test_a_node_that_is_lost_is_a_failure_of_infrastructure_and_replaced(ray_session, sandboxes):
    import ray

    async with ResourceEngine() as engine:
        async with engine.lease(small(), trajectory="a") as sandbox:
            running = asyncio.ensure_future(sandbox.run(["sleep", "60"], seconds=60))
            await sandbox.healthy()
            ray.kill(sandbox._actor)
            with pytest.raises(InfrastructureError, match="lost"):
                await running
            assert not await sandbox.healthy()
        async with engine.lease(small(), trajectory="b") as sandbox:
            assert (await sandbox.run(["sh", "-c", "echo back"])).stdout == "back\n"


@dataclass(frozen=True)
class Refusing:
    """What its resources do is fail, each time in its own way."""

    pool: PoolLimits = field(default_factory=PoolLimits)

    def check(self) -> None: ...

    async def create(self) -> Refusing:
        return self

    async def begin(self, episode: str) -> None: ...

    async def healthy(self) -> bool:
        return True

    async def close(self) -> None: ...

    async def refuse(self) -> None:
        raise EnvironmentFailure("it says no", where="tool:play")

    async def break_down(self) -> None:
        raise ZeroDivisionError("a bug")


async def test_errors_come_back_as_what_they_are(ray_session):
    async with RaySpec(spec=Refusing(), num_cpus=0).open() as resource:
        with pytest.raises(EnvironmentFailure, match="it says no") as caught:
            await resource.refuse()
        assert caught.value.where == "tool:play"
        with pytest.raises(InfrastructureError, match="a bug"):
            await resource.break_down()


def test_what_no_node_has_is_refused_before_anything_waits_for_it(ray_session):
    with pytest.raises(ConfigError, match="no node of the Ray cluster has 1 CPU, 2 docker"):
        RaySpec(spec=Refusing(), custom={"docker": 2}).check()
