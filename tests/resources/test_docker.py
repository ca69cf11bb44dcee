"""Containers of a real Docker engine: what limits do, what is left behind, and a pool of them under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentfly_lib.cli import app
from agentfly_lib.errors import ConfigError, InfrastructureError, SandboxError, SandboxUnavailableError
from agentfly_lib.resources import PoolLimits, ResourceEngine
from agentfly_lib.resources.docker import Container, ContainerSpec, Mount
from agentfly_lib.resources.docker_engine import Left, docker_engine
from agentfly_lib.resources.images import ImageProgress, ensure_image
from agentfly_lib.resources.leftovers import find, reap
from agentfly_lib.resources.owner import this_owner

pytestmark = [pytest.mark.container, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def spec(container_image: str) -> ContainerSpec:
    return ContainerSpec(image=container_image, memory_mib=96, processes=24, disk_mib=8, file_mib=4, cpus=0.25)


@pytest.fixture(scope="module")
async def container(spec: ContainerSpec) -> AsyncIterator[Container]:
    async with spec.open() as container:
        yield container


async def python(container: Container, code: str, seconds: float = 60.0) -> str:
    done = await container.run(["python3", "-I", "-S", "-c", code], seconds=seconds)
    return done.stdout + done.stderr


def inspect(container: Container) -> dict[str, Any]:
    assert container.id
    return docker_engine().client.api.inspect_container(container.id)


def ours() -> list[str]:
    """Containers that this process has made and not removed."""
    return [left.name for left in docker_engine().left() if left.owner.pid == os.getpid()]


def of_run(run: str) -> list[Left]:
    return [left for left in docker_engine().left() if left.owner.run == run]


class TestLimits:
    async def test_memory(self, container: Container):
        """One that wants too much is killed; the sandbox, and what else is in it, lives on."""
        await python(container, "open('kept', 'w').write('42')")
        greedy = "x = []\nwhile True: x.append(bytearray(1 << 20))"
        done = await container.run(["python3", "-I", "-S", "-c", greedy], seconds=60)
        assert (done.exit_code, done.timed_out) == (-signal.SIGKILL, False)
        assert await python(container, "print(open('kept').read())") == "42\n"
        assert container.starts == 1

    async def test_memory_of_all_together_with_their_files(self, container: Container):
        said = await python(
            container,
            "import os\n"
            "pids = []\n"
            "for _ in range(6):\n"
            "    if not (pid := os.fork()):\n"
            "        x = bytearray(25 << 20); os.read(0, 1); import time; time.sleep(3); os._exit(0)\n"
            "    pids.append(pid)\n"
            "print(sum(os.waitpid(pid, 0)[1] == 9 for pid in pids) > 0)",
        )
        assert said == "True\n"

    async def test_processes(self, container: Container):
        said = await python(
            container,
            "import os, time\n"
            "count = 0\n"
            "try:\n"
            "    while count < 200:\n"
            "        if not os.fork(): time.sleep(60); os._exit(0)\n"
            "        count += 1\n"
            "except BlockingIOError: pass\n"
            "print(10 < count < 24, flush=True)\n"
            "os.kill(0, 9)",
        )
        assert said == "True\n"

    async def test_processor(self, container: Container):
        """A quarter of one, whatever the number of threads; the bound leaves room for one more period."""
        said = await python(
            container,
            "import time, os, resource\n"
            "began = time.monotonic()\n"
            "if not os.fork():\n"
            "    while time.monotonic() - began < 2: pass\n"
            "    os._exit(0)\n"
            "while time.monotonic() - began < 2: pass\n"
            "os.wait()\n"
            "used = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime"
            " for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n"
            "print(used / (time.monotonic() - began))",
        )
        assert 0 < float(said) < 0.4

    async def test_a_life_ends(self, spec: ContainerSpec):
        container = await replace(spec, life_seconds=1).create()
        try:
            with pytest.raises(SandboxError, match="died"):
                await container.run(["sleep", "60"], seconds=60)
        finally:
            await container.close()

    async def test_what_the_engine_was_told(self, container: Container):
        told = inspect(container)
        host = told["HostConfig"]
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert not host["Init"]
        assert host["NetworkMode"] == "none"
        assert host["PidsLimit"] == 24
        assert host["Memory"] == host["MemorySwap"] == 96 << 20
        assert told["Config"]["User"] == "65534:65534"
        assert told["Config"]["Labels"] | this_owner().labels() == told["Config"]["Labels"]


class TestLife:
    async def test_orphans_are_buried(self, container: Container):
        """They would use up the limit of processes otherwise."""
        for _ in range(3):
            await python(
                container,
                "import os\n"
                "for _ in range(8):\n"
                "    if not os.fork():\n"
                "        if not os.fork(): os._exit(0)\n"
                "        os._exit(0)\n"
                "    os.wait()",
            )
        assert int(await python(container, "import os; print(sum(p.isdigit() for p in os.listdir('/proc')))")) == 2

    async def test_a_command_cannot_kill_the_keeper(self, container: Container):
        before = container.starts
        await container.run(["sh", "-c", "echo kept > file; sleep 600 &"])
        await container.run(["sh", "-c", "kill -9 1; kill -ALRM 1; kill -9 -1"])
        await container.quieten()
        assert (await container.run(["cat", "file"])).stdout == "kept\n"
        assert container.starts == before

    async def test_one_that_dies_costs_its_own_files_alone(self, spec: ContainerSpec):
        async with spec.open() as container:
            running = asyncio.ensure_future(container.run(["sleep", "60"], seconds=60))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(docker_engine().client.api.kill, container.id)
            with pytest.raises(SandboxError, match="died, with all that was in it"):
                await running
            assert await python(container, "print(6 * 7)") == "42\n"
            assert container.starts == 2
        assert container.id is None

    async def test_who_waits_learns_that_it_was_removed_from_outside(self, spec: ContainerSpec):
        async with spec.open() as container:
            running = asyncio.ensure_future(container.run(["sleep", "60"], seconds=60))
            await asyncio.sleep(0.2)
            assert container.id
            await asyncio.to_thread(docker_engine().remove, container.id)
            with pytest.raises((InfrastructureError, SandboxError), match=r"removed from outside|died"):
                await running  # dead, being removed or gone, by how soon we look

    async def test_cancelled_at_any_moment_it_leaves_nothing(self, spec: ContainerSpec):
        before = set(await asyncio.to_thread(ours))
        for seconds in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds), spec.open() as container:
                    await container.run(["sleep", "60"], seconds=60)
        async with asyncio.timeout(60):
            while set(await asyncio.to_thread(ours)) != before:
                await asyncio.sleep(0.1)

    async def test_an_image_that_is_not_there(self, spec: ContainerSpec):
        with pytest.raises(SandboxUnavailableError, match="agentfly-test-nothing:1"):
            await asyncio.to_thread(replace(spec, image="agentfly-test-nothing:1").check)
        with pytest.raises(InfrastructureError, match="does not exist"):
            await replace(spec, image="agentfly-test-nothing:1").create()

    async def test_a_python_that_is_not_there(self, spec: ContainerSpec):
        with pytest.raises(InfrastructureError, match="snake"):
            await replace(spec, python="snake").create()

    async def test_a_folder_of_the_machine(self, spec: ContainerSpec, tmp_path: Path):
        (tmp_path / "file").write_text("42")
        tmp_path.chmod(0o755)
        async with replace(spec, mounts=(Mount(source=str(tmp_path), target="/given"),)).open() as container:
            assert await python(container, "print(open('/given/file').read())") == "42\n"
            assert "Read-only" in await python(container, "open('/given/new', 'w')")


@pytest.fixture
def network():
    made = docker_engine().client.networks.create(f"agentfly-test-{os.urandom(4).hex()}")
    yield made.name
    made.remove()


async def test_a_service_with_a_port_runs_commands_too(spec: ContainerSpec, network: str):
    service = replace(
        spec,
        command=("python3", "-I", "-m", "http.server", "8000", "--directory", "/workspace"),
        network=network,
        ports=(8000,),
        pool=PoolLimits(cap=1),
    )
    async with ResourceEngine(run="ports") as engine, engine.lease(service, trajectory="a") as container:
        await container.run(["sh", "-c", "echo served > page"])
        host, port = await container.address(8000)
        assert host == "127.0.0.1"
        answer = b""
        for _ in range(300):  # the engine listens before the service does, and hangs up until then
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"GET /page HTTP/1.0\r\n\r\n")
                answer = await reader.read()
                writer.close()
            if answer:
                break
            await asyncio.sleep(0.1)
        assert answer.endswith(b"served\n")
        assert await container.healthy()
        stuck = await container.run(["sleep", "60"], seconds=0.5)
        assert stuck.timed_out
        assert (await container.run(["sh", "-c", "exit 0"])).exit_code == 0
        await asyncio.to_thread(docker_engine().client.api.kill, container.id)
        assert not await container.healthy()


async def test_an_image_is_built_once_and_again_when_its_folder_changes(container_image: str, tmp_path: Path):
    image = f"agentfly-test-built-{os.urandom(4).hex()}"
    (tmp_path / "Dockerfile").write_text(f"FROM {container_image}\nCOPY note /note\n")
    steps: list[ImageProgress] = []

    def build() -> str:
        steps.clear()
        ensure_image(docker_engine(), image, build=str(tmp_path), progress=steps.append)
        return docker_engine().client.images.get(image).id or ""

    try:
        (tmp_path / "note").write_text("one")
        first = await asyncio.to_thread(build)
        assert any("COPY note" in step.step for step in steps)
        assert await asyncio.to_thread(build) == first
        assert not steps
        (tmp_path / "note").write_text("two")
        assert await asyncio.to_thread(build) != first
        (tmp_path / "Dockerfile").write_text(f"FROM {container_image}\nCOPY nothing /note\n")
        with pytest.raises((SandboxUnavailableError, InfrastructureError), match="nothing"):
            await asyncio.to_thread(build)
    finally:
        docker_engine().client.images.remove(image, force=True)


LEAVE = """
import asyncio, dataclasses, os, signal, sys
from agentfly_lib.resources import ResourceEngine
from agentfly_lib.resources.docker import ContainerSpec

async def main():
    spec = ContainerSpec(image=sys.argv[1], memory_mib=64, disk_mib=8)
    service = dataclasses.replace(spec, command=("sleep", "1000"))
    engine = ResourceEngine(run=sys.argv[2])
    stack = [engine.lease(each, trajectory="a") for each in (spec, service)]
    print([(await lease.__aenter__()).id for lease in stack], flush=True)
    {end}

asyncio.run(main())
"""


async def leave(end: str, image: str, run: str) -> subprocess.CompletedProcess[str]:
    """Another process of `run` starts two containers and ends in its own way."""
    command = [sys.executable, "-c", LEAVE.replace("{end}", end), image, run]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)


class TestLeftovers:
    async def test_a_killed_run_is_shown_and_reaped(self, spec: ContainerSpec):
        run = f"killed-{os.urandom(4).hex()}"
        ended = await leave("os.kill(os.getpid(), signal.SIGKILL)", spec.image, run)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        shown = CliRunner().invoke(app, ["resources", "ls"])
        lines = [line for line in shown.output.splitlines() if run in line]
        assert [("left behind" in line, "container" in line) for line in lines] == [(True, True)] * 2
        async with asyncio.timeout(60):  # the sandbox ends with its owner, the service goes on until it is reaped
            while len([left for left in await asyncio.to_thread(of_run, run) if left.status.startswith("Up")]) != 1:
                await asyncio.sleep(0.05)
        assert "0 removed" in CliRunner().invoke(app, ["resources", "reap", "--run", "another"]).output
        assert "2 removed" in CliRunner().invoke(app, ["resources", "reap", "--run", run]).output
        assert run not in CliRunner().invoke(app, ["resources", "ls"]).output

    async def test_the_next_start_of_the_run_reaps_its_own_and_no_other(self, spec: ContainerSpec):
        run, other = (f"{name}-{os.urandom(4).hex()}" for name in ("mine", "other"))
        for name in (run, other):
            await leave("os.kill(os.getpid(), signal.SIGKILL)", spec.image, name)
        async with ResourceEngine(run=run) as engine, engine.lease(spec, trajectory="a") as container:
            assert [left.id for left in await asyncio.to_thread(of_run, run)] == [container.id]
            assert len(await asyncio.to_thread(of_run, other)) == 2
        assert len(await asyncio.to_thread(lambda: reap(find(), run=other))) == 2

    async def test_a_process_that_ends_without_closing_leaves_nothing(self, spec: ContainerSpec):
        run = f"ended-{os.urandom(4).hex()}"
        ended = await leave("sys.exit(3)", spec.image, run)
        assert ended.returncode == 3, ended.stderr
        assert not await asyncio.to_thread(of_run, run)

    async def test_what_is_in_use_is_left_alone(self, container: Container):
        assert container.id
        await asyncio.to_thread(lambda: reap(find(), run=this_owner().run))
        assert inspect(container)["State"]["Running"]


@pytest.mark.slow
async def test_64_chains_share_8_containers_with_failures_at_random(spec: ContainerSpec):
    """No deadlock, no leak, never more than 8; those that ask first are served first."""
    chance = random.Random(4)
    pooled = replace(spec, cpus=1.0, pool=PoolLimits(cap=8, warm=2, episodes=3))
    asked: list[int] = []
    served: list[int] = []
    most = 0
    engine = ResourceEngine(run="load")

    async def chain(number: int) -> str:
        nonlocal most
        asked.append(number)
        async with engine.lease(pooled, trajectory=str(number), timeout=240) as container:
            served.append(number)
            most = max(most, len(await asyncio.to_thread(of_run, "load")))
            assert (await container.run(["sh", "-c", "ls /workspace /tmp"])).stdout == "/tmp:\n\n/workspace:\n"
            await container.run(["sh", "-c", f"echo {number} > /workspace/mine"])
            fate = chance.choice(["fine", "fine", "fine", "raises", "killed", "slow", "bomb"])
            if fate == "raises":
                raise ZeroDivisionError
            if fate == "killed":
                await asyncio.to_thread(docker_engine().client.api.kill, container.id)
            if fate == "slow":
                assert (await container.run(["sleep", "60"], seconds=0.3)).timed_out
            if fate == "bomb":
                await container.run(["sh", "-c", "for _ in 1 2 3 4 5 6; do sleep 60 & done"])
            return fate

    async with engine:
        ends = await asyncio.gather(*(chain(number) for number in range(64)), return_exceptions=True)
        metrics = engine.metrics()
    assert [end for end in ends if not isinstance(end, str | ZeroDivisionError)] == []
    assert len(served) == 64
    # Their turns come in order (the property test shows it exactly). Eight begin at the same time, each in a container
    # of its own, and one whose container is slow to begin is passed by others; nobody is left behind.
    assert all(place - number < 32 for place, number in enumerate(served))
    assert most <= 8
    assert metrics["resources/alive/max"] <= 8
    assert metrics["resources/lent/count"] == 64
    assert not await asyncio.to_thread(of_run, "load")


@pytest.mark.parametrize(
    ("values", "said"),
    [({"memory_mib": 1}, "memory_mib"), ({"cpus": 0.0}, "cpus"), ({"ports": (80,)}, "network"),
     ({"python": None}, "nothing to run"), ({"open_files": 3}, "open_files")],
)  # fmt: skip
async def test_a_spec_that_cannot_be_says_why(values: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        ContainerSpec(image="x", **values)
