"""Ways out that are tried, and shut, in a process behind bubblewrap as in a container."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentfly_lib.errors import SandboxError
from agentfly_lib.resources import ProcessSpec, Sandbox
from agentfly_lib.resources.docker import ContainerSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "AGENTFLY_TEST_SECRET"
LIMITS: dict[str, Any] = {"memory_mib": 256, "processes": 40, "disk_mib": 8, "file_mib": 4}


@pytest.fixture(scope="module")
def secret() -> str:
    """Something in our environment and in a file of the machine that must not be seen inside."""
    os.environ[SECRET] = "walrus-" + os.urandom(8).hex()
    return os.environ[SECRET]


@pytest.fixture(
    scope="module", params=[pytest.param("process"), pytest.param("container", marks=pytest.mark.container)]
)
def spec(request: pytest.FixtureRequest, secret: str) -> ProcessSpec | ContainerSpec:
    if request.param == "process":
        request.getfixturevalue("sandboxes")
        return ProcessSpec(**LIMITS)
    return ContainerSpec(image=request.getfixturevalue("container_image"), **LIMITS)


@pytest.fixture(scope="module")
async def sandbox(spec: ProcessSpec | ContainerSpec) -> AsyncIterator[Sandbox]:
    async with spec.open() as sandbox:
        yield sandbox


async def python(sandbox: Sandbox, code: str, seconds: float = 30.0) -> str:
    done = await sandbox.run([sandbox.python, "-I", "-S", "-c", code], seconds=seconds)
    return done.stdout + done.stderr


async def test_the_network_is_not_there(sandbox: Sandbox):
    said = await python(
        sandbox,
        "import socket\n"
        "for family, address in ((2, ('1.1.1.1', 53)), (2, ('172.17.0.1', 80)), (2, ('169.254.169.254', 80)),"
        " (10, ('2606:4700::1111', 53))):\n"
        "    try:\n"
        "        s = socket.socket(family, socket.SOCK_DGRAM); s.connect(address); print('connected', address)\n"
        "    except OSError as error:\n"
        "        print('refused')\n"
        "print([name for _, name in socket.if_nameindex() if name not in ('lo',"
        " 'tunl0', 'sit0', 'ip6tnl0', 'gre0', 'gretap0', 'erspan0', 'ip_vti0', 'ip6_vti0', 'ip6gre0')])",
    )
    assert said.split("\n")[:5] == ["refused"] * 4 + ["[]"]


async def test_services_of_the_machine_are_not_there(sandbox: Sandbox):
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        said = await python(
            sandbox,
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 5); print('connected')\n"
            "except OSError as error: print('refused')",
        )
    assert said == "refused\n"


@pytest.mark.parametrize("place", ["/usr/x", "/etc/passwd", "/x", "/bin/sh", "/proc/sys/kernel/hostname", "/sys/x"])
async def test_nothing_is_written_outside(sandbox: Sandbox, place: str):
    said = await python(sandbox, f"try: open({place!r}, 'a').write('x'); print('written')\nexcept OSError: print('no')")
    assert said == "no\n"


async def test_our_environment_is_not_seen(sandbox: Sandbox, secret: str):
    said = await python(
        sandbox,
        "import os, glob\n"
        "print(dict(os.environ))\n"
        "for path in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: print(open(path, 'rb').read())\n"
        "    except OSError: pass",
    )
    assert "HOME" in said
    assert secret not in said
    assert SECRET not in said


async def test_files_of_the_machine_are_not_seen(sandbox: Sandbox, secret: str, tmp_path_factory):
    hidden = tmp_path_factory.mktemp("hidden") / "file"
    hidden.write_text(secret)
    here = Path(__file__).resolve()
    for path in (
        hidden,
        here,
        Path("/etc/shadow"),
        Path(f"/proc/1/root{hidden}"),
        Path(f"/proc/{os.getpid()}/environ"),
    ):
        said = await python(sandbox, f"try: print(open({str(path)!r}, 'rb').read())\nexcept OSError: print('no')")
        assert said == "no\n", path


async def test_a_fork_bomb_is_contained_and_ended(sandbox: Sandbox):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    done = await sandbox.run([sandbox.python, "-I", "-S", "-c", bomb], seconds=2)
    assert done.timed_out
    await asyncio.wait_for(sandbox.run(["sh", "-c", "exit 0"], seconds=30), 120)
    left = await python(sandbox, "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))")
    assert int(left) <= 4


async def test_the_disk_cannot_be_filled(sandbox: Sandbox):
    said = await python(
        sandbox,
        "import os, errno\n"
        "for folder in ('/workspace', '/tmp', '/dev/shm'):\n"
        "    size, number = 0, 0\n"
        "    try:\n"
        "        while size < 100 << 20:\n"
        "            with open(f'{folder}/{number}', 'wb') as file:\n"
        "                for _ in range(3): size += file.write(b'x' * (1 << 20)); file.flush()\n"
        "            number += 1\n"
        "    except OSError as error: print(errno.errorcode[error.errno], size >> 20 <= 8)\n"
        "    for name in os.listdir(folder): os.remove(f'{folder}/{name}')\n",
    )
    assert said == "ENOSPC True\n" * 3


async def test_one_file_cannot_be_too_long(sandbox: Sandbox):
    said = await python(
        sandbox,
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('long', 'wb').write(b'x' * (5 << 20))",
    )
    assert "File too large" in said
    await sandbox.run(["rm", "-f", "long"])


async def test_nothing_survives_the_kill(sandbox: Sandbox):
    """Not by a session of its own, a second fork, a closed output or ignored signals."""
    stubborn = (
        "import os, signal, time\n"
        "for number in range(1, 32):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.closerange(0, 100)\n"
        "        while True: time.sleep(1)\n"
        "while True: time.sleep(1)"
    )
    done = await sandbox.run([sandbox.python, "-I", "-S", "-c", stubborn], seconds=2)
    assert done.timed_out
    left = await python(
        sandbox,
        "import glob\n"
        "for path in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    if b'SIG_IGN' in open(path, 'rb').read() and b'glob' not in open(path, 'rb').read(): print(path)",
    )
    assert left == ""


async def test_privileges_cannot_be_had(sandbox: Sandbox):
    said = await python(
        sandbox,
        "import os, ctypes\n"
        "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)\n"
        "print(os.getuid() != 0, int(status['CapEff'], 16), status['NoNewPrivs'].strip())\n"
        "libc, new_user, new_mounts, attach = ctypes.CDLL(None, use_errno=True), 0x10000000, 0x20000, 16\n"
        "print(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), libc.unshare(new_user | new_mounts))\n"
        "keeper = os.getppid()\n"
        "print(libc.ptrace(attach, keeper, 0, 0))\n"
        "print([p for p in os.listdir('/proc') if p.isdigit() and os.access(f'/proc/{p}/fd', os.R_OK)] == "
        "[str(os.getpid())])",  # nobody but the keeper holds the pipes to the outside
    )
    assert said == "True 0 1\n-1 -1\n-1\nTrue\n"


class TestCopies:
    async def test_in_and_out_again(self, sandbox: Sandbox, tmp_path: Path):
        source = tmp_path / "source"
        (source / "deep" / "empty").mkdir(parents=True)
        (source / "big").write_bytes(os.urandom(3 << 20))
        (source / "deep" / "run.sh").write_text("echo 42\n")
        (source / "deep" / "run.sh").chmod(0o755)
        (source / "link").symlink_to("deep/run.sh")
        (source / "deep" / "up").symlink_to("../big")
        await sandbox.copy_in(source, "/workspace/copied")
        assert (await sandbox.run(["sh", "-c", "./copied/link"])).stdout == "42\n"
        await sandbox.copy_out("/workspace/copied", tmp_path / "back")
        back = tmp_path / "back"
        assert (back / "big").read_bytes() == (source / "big").read_bytes()
        assert os.readlink(back / "link") == "deep/run.sh"
        assert (back / "deep" / "up").resolve() == (back / "big").resolve()
        assert os.access(back / "deep" / "run.sh", os.X_OK)
        assert (back / "deep" / "empty").is_dir()
        await sandbox.run(["rm", "-rf", "copied"])

    @pytest.mark.parametrize("link", ["/etc/passwd", "../outside", "inner/../../outside"])
    async def test_a_link_out_is_refused_on_the_way_in(self, sandbox: Sandbox, tmp_path: Path, link: str):
        (tmp_path / "outside").write_text("secret")
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "link").symlink_to(link)
        with pytest.raises(SandboxError, match="refused"):
            await sandbox.copy_in(tmp_path / "source", "/workspace/in")

    @pytest.mark.parametrize(
        "make",
        [
            "os.symlink('/etc/passwd', 'out/link')",
            "os.symlink('../../up', 'out/link')",
            "os.symlink('.', 'out/a'); os.symlink('a/../../up', 'out/link')",
            "os.mkfifo('out/fifo')",
            "import socket; s = socket.socket(socket.AF_UNIX); s.bind('out/socket')",
        ],
    )
    async def test_what_leads_out_is_refused_on_the_way_out(self, sandbox: Sandbox, tmp_path: Path, make: str):
        assert await python(sandbox, f"import os\nos.mkdir('out')\n{make}") == ""
        target = tmp_path / "target"
        with pytest.raises(SandboxError, match="refused"):
            await sandbox.copy_out("/workspace/out", target)
        assert list(target.iterdir()) in ([], [target / "a"])
        await sandbox.run(["rm", "-rf", "out"])

    async def test_a_link_that_was_there_before_leads_nowhere(self, sandbox: Sandbox, tmp_path: Path):
        """What an earlier copy has left in the target, or somebody else."""
        outside, target = tmp_path / "outside", tmp_path / "target"
        outside.mkdir()
        target.mkdir()
        (target / "folder").symlink_to(outside)
        (target / "file").symlink_to(outside / "file")
        for made in (
            "os.makedirs('out/folder'); open('out/folder/x', 'w').write('x')",
            "open('out/file', 'w').write('x')",
        ):
            await python(sandbox, f"import os\nos.makedirs('out', exist_ok=True)\n{made}")
            with pytest.raises(SandboxError, match="cannot be made"):
                await sandbox.copy_out("/workspace/out", target)
            await sandbox.run(["rm", "-rf", "out"])
        assert list(outside.iterdir()) == []

    async def test_too_much_is_not_copied(self, sandbox: Sandbox, tmp_path: Path):
        """Nor a file that only says that it is long."""
        await python(sandbox, "open('small', 'w').write('x'); open('sparse', 'wb').truncate(4 << 20)")
        with pytest.raises(SandboxError, match="more than 2097152 bytes"):
            await sandbox.copy_out("/workspace", tmp_path / "target", max_bytes=2 << 20)
        await sandbox.run(["rm", "-f", "small", "sparse"])

    async def test_what_does_not_exist_is_told(self, sandbox: Sandbox, tmp_path: Path):
        with pytest.raises(SandboxError, match="No such file"):
            await sandbox.copy_out("/workspace/nothing", tmp_path / "target")


async def test_an_episode_begins_with_nothing_of_the_one_before(spec: ProcessSpec | ContainerSpec):
    sandbox = await spec.create()
    try:
        await sandbox.begin("one")
        await python(
            sandbox,
            "import os\n"
            "for folder in ('/workspace', '/tmp', '/dev/shm'): open(folder + '/left', 'w').write('x')\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    os.closerange(0, 9)\n"
            "    os.execlp('sleep', 'sleep', '1000')",
        )
        await sandbox.begin("two")
        said = await python(
            sandbox,
            "import glob\n"
            "print(glob.glob('/workspace/*') + glob.glob('/tmp/*') + glob.glob('/dev/shm/*'),"
            " [p for p in glob.glob('/proc/[0-9]*/cmdline') if b'sleep' in open(p, 'rb').read().split(b'\\0')])",
        )
        assert said == "[] []\n"
    finally:
        await sandbox.close()


async def test_closing_ends_every_process(spec: ProcessSpec | ContainerSpec):
    mark = f"agentfly-{os.urandom(6).hex()}"
    sandbox = await spec.create()
    await sandbox.run(["sh", "-c", f"(exec sh -c 'while :; do sleep 1; done; : {mark}') >/dev/null 2>&1 </dev/null &"])

    def alive() -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(mark in part for part in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    assert alive()
    await sandbox.close()
    assert not alive()
