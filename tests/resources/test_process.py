"""Sandboxed processes: they do what they are asked, within their limits, and every way out is shut."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentfly_lib.errors import SandboxError, SandboxUnavailableError
from agentfly_lib.resources import Process, ProcessSpec, open_process
from agentfly_lib.resources.process import PYTHON

SMALL = ProcessSpec(memory_mib=256, processes=24, disk_mib=8, file_mib=4, cpu_seconds=20)


async def python(process: Process, code: str, seconds: float = 20.0, **options):
    return await process.run([PYTHON, "-I", "-S", "-c", code], seconds=seconds, **options)


async def attempt(code: str, spec: ProcessSpec = SMALL) -> str:
    """What a program prints, in a sandbox of its own."""
    async with open_process(spec) as process:
        done = await python(process, code)
    return done.stdout + done.stderr


async def processes_inside(process: Process) -> list[int]:
    """Ids of all processes but the first and the one that looks."""
    done = await python(process, "import os; print([int(p) for p in os.listdir('/proc') if p.isdigit()], os.getpid())")
    found, own = done.stdout.rsplit(" ", 1)
    return [pid for pid in json.loads(found) if pid not in (1, int(own))]


class TestWithoutBubblewrap:
    def test_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
            ProcessSpec().check()

    async def test_nothing_is_run_instead(self, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(SandboxUnavailableError):
            async with open_process(ProcessSpec()):
                pytest.fail("there was a process")

    async def test_one_that_cannot_start_is_told_with_its_own_words(self, monkeypatch, tmp_path):
        (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(SandboxUnavailableError, match="No permissions to create new namespace"):
            async with open_process(ProcessSpec()):
                pytest.fail("there was a process")

    @pytest.mark.parametrize("limits", [{"memory_mib": 0}, {"processes": 0}, {"disk_mib": 0}, {"open_files": 10}])
    def test_limits_that_cannot_be(self, limits):
        with pytest.raises(ValueError, match=next(iter(limits))):
            ProcessSpec(**limits)


@pytest.mark.usefixtures("sandboxes")
class TestCommands:
    async def test_output_error_and_exit_code(self):
        async with open_process(SMALL) as process:
            done = await process.run(["sh", "-c", "cat; echo warning >&2; exit 3"], stdin="hällo")
            assert (done.stdout, done.stderr, done.exit_code, done.timed_out) == ("hällo", "warning\n", 3, False)

    async def test_files_stay_for_the_next_command(self):
        async with open_process(SMALL) as process:
            await process.run(["sh", "-c", "echo kept > a.txt"])
            assert (await process.run(["cat", "/workspace/a.txt"])).stdout == "kept\n"

    async def test_at_the_same_time(self):
        async with open_process(SMALL) as process:
            await process.run(["mkfifo", "meeting"])
            reads, writes = await asyncio.gather(
                process.run(["cat", "meeting"]), process.run(["sh", "-c", "echo met > meeting"])
            )
            assert (reads.stdout, writes.exit_code) == ("met\n", 0)

    async def test_a_program_that_is_not_there(self):
        async with open_process(SMALL) as process:
            done = await process.run(["nothing-of-this-name"])
            assert done.exit_code == 127
            assert "No such file" in done.stderr

    async def test_what_is_printed_is_bounded(self):
        async with open_process(SMALL) as process:
            done = await process.run(["sh", "-c", "yes | head -c 100000000"], max_bytes=1000, seconds=60)
            assert (len(done.stdout), done.cut_stdout, done.exit_code) == (1000, 99_999_000, 0)

    async def test_bytes_that_are_no_text(self):
        async with open_process(SMALL) as process:
            assert (await process.run(["printf", "\\377ok"])).stdout == "\ufffdok"

    async def test_text_that_cannot_be_written_does_not_end_the_sandbox(self):
        async with open_process(SMALL) as process:
            assert (await process.run(["cat"], stdin="a\ud800b")).stdout == "a?b"
            assert (await process.run(["\ud800"])).exit_code == 127
            assert process.starts == 1

    async def test_background_processes_do_not_hold_up_the_answer(self):
        async with open_process(SMALL) as process:
            done = await process.run(["sh", "-c", "sleep 1000 & echo started"])
            assert done.stdout == "started\n"
            assert len(await processes_inside(process)) == 1

    async def test_folders_and_variables_of_the_spec(self, tmp_path):
        (tmp_path / "note.txt").write_text("seen")
        os.chmod(tmp_path, 0o755)
        spec = ProcessSpec(read_only=(str(tmp_path),), environment={"MODE": "test"})
        async with open_process(spec) as process:
            done = await process.run(
                ["sh", "-c", f"cat {tmp_path}/note.txt; echo $MODE; touch {tmp_path}/x; touch /tmp/y && ls /tmp/y"]
            )
            assert done.stdout == "seentest\n/tmp/y\n"
            assert "Read-only" in done.stderr


@pytest.mark.usefixtures("sandboxes")
class TestSessions:
    ECHO = (
        "import os\nr, w = os.fdopen(3), os.fdopen(4, 'w')\nfor n, line in enumerate(r):\n"
        "    print('heard', flush=True); w.write(f'{n} {line.upper()}'); w.flush()\n"
    )

    async def ask(self, process: Process, message: str, code: str = ECHO, **options):
        return await process.ask("s", [PYTHON, "-I", "-S", "-c", code], message, **options)

    async def test_it_stays(self):
        async with open_process(SMALL) as process:
            first, second = await self.ask(process, "a"), await self.ask(process, "b")
            assert [(d.reply, d.stdout, d.fresh) for d in (first, second)] == [
                ("0 A", "heard\n", True),
                ("1 B", "heard\n", False),
            ]

    async def test_one_that_ends_is_started_again(self):
        async with open_process(SMALL) as process:
            await self.ask(process, "a")
            gone = await self.ask(process, "x", "import os; os._exit(7)", seconds=10)
            assert gone.reply == "1 X"  # it ran already; another program is another session
            dead = await process.ask("t", ["sh", "-c", "exit 7"], "x")
            assert (dead.reply, dead.exit_code) == (None, 7)
            assert (await process.ask("t", ["sh", "-c", "read a <&3; echo $a >&4; read b <&3"], "y")).reply == "y"

    async def test_out_of_time_it_is_killed_and_the_next_is_fresh(self):
        async with open_process(SMALL) as process:
            late = await process.ask("s", ["sh", "-c", "echo begun; sleep 1000"], "x", seconds=0.3)
            assert (late.timed_out, late.reply, late.stdout) == (True, None, "begun\n")
            assert (await self.ask(process, "a")).fresh
            assert len(await processes_inside(process)) == 1


@pytest.mark.usefixtures("sandboxes")
class TestKilling:
    FAMILY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            while True: time.sleep(100)
        os._exit(0)
print('family', flush=True)
while True: time.sleep(100)
"""

    async def test_the_time_limit_takes_the_whole_tree_also_what_left_its_session(self):
        async with open_process(SMALL) as process:
            done = await python(process, self.FAMILY, seconds=1.0)
            assert (done.timed_out, done.stdout, done.exit_code) == (True, "family\n", -signal.SIGKILL)
            assert await processes_inside(process) == []

    async def test_other_commands_and_sessions_go_on(self):
        async with open_process(SMALL) as process:
            waiting = asyncio.ensure_future(
                process.run(["sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; echo on"])
            )
            await process.ask("s", [PYTHON, "-I", "-S", "-c", TestSessions.ECHO], "a")
            assert (await process.run(["sleep", "1000"], seconds=0.3)).timed_out
            await process.run(["touch", "go"])
            assert (await waiting).stdout == "on\n"
            assert (await process.ask("s", ["false"], "b")).reply == "1 B"

    async def test_a_fork_bomb_is_bounded_and_ends(self):
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
        async with open_process(SMALL) as process:
            assert (await python(process, bomb, seconds=0.5)).timed_out
            assert await processes_inside(process) == []

    async def test_orphans_that_use_up_the_limit_give_way_to_the_next_command(self):
        greedy = (
            "import os, time\nfor _ in range(100):\n    try:\n        if os.fork() == 0: time.sleep(1000)\n"
            "    except OSError: break\n"
        )
        async with open_process(SMALL) as process:
            await python(process, greedy)
            assert (await process.run(["echo", "fine"])).stdout == "fine\n"

    async def test_ignored_signals_do_not_help(self):
        code = "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(9)"
        async with open_process(SMALL) as process:
            assert (await python(process, code, seconds=0.3)).timed_out

    async def test_cancelling_a_command_ends_it(self):
        async with open_process(SMALL) as process:
            await process.run(["mkfifo", "signal"])
            running = asyncio.ensure_future(process.run(["sh", "-c", "echo go > signal; sleep 1000"]))
            await process.run(["cat", "signal"])
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await processes_inside(process) == []

    async def test_all_that_runs_can_be_ended_and_the_files_stay(self):
        async with open_process(SMALL) as process:
            await process.run(
                ["sh", "-c", "echo kept > file; (setsid sh -c 'trap \"\" TERM; sleep 600' &) ; sleep 600 &"]
            )
            asked = asyncio.ensure_future(process.run(["sleep", "600"], seconds=60))
            await asyncio.sleep(0.1)
            await process.quieten()
            assert await processes_inside(process) == []
            assert (await asked).exit_code == -signal.SIGKILL
            assert (await process.run(["cat", "file"])).stdout == "kept\n"
            assert process.starts == 1

    async def test_the_end_of_the_block_leaves_nothing(self):
        async with open_process(SMALL) as process:
            await process.run(["sh", "-c", "setsid sleep 987654 & setsid sleep 987655 &"])
        assert not [p for p in psutil.process_iter(["cmdline"]) if "987654" in (p.info["cmdline"] or [])]

    async def test_a_closed_one_runs_nothing(self):
        async with open_process(SMALL) as process:
            pass
        with pytest.raises(SandboxError, match="closed"):
            await process.run(["true"])

    async def test_who_closes_it_twice_at_once_closes_it_once(self):
        async with open_process(SMALL) as process:
            box = process._box
            assert box is not None
            await asyncio.gather(box.close(), box.close(), process.close())
            assert box.dead

    async def test_one_that_died_is_replaced_empty_by_the_next_command(self):
        async with open_process(SMALL) as process:
            await process.run(["touch", "a"])
            running = asyncio.ensure_future(process.run(["sh", "-c", "echo > /workspace/up; sleep 1000"]))
            await process.run(["sh", "-c", "while [ ! -e up ]; do sleep 0.01; done"])
            (bwrap,) = [c for c in psutil.Process().children() if c.name() == "bwrap"]
            bwrap.children()[0].kill()
            with pytest.raises(SandboxError, match="died"):
                await running
            assert (await process.run(["ls"])).stdout == ""
            assert process.starts == 2

    def test_our_own_death_leaves_nothing(self):
        program = (
            "import asyncio, os, signal\nfrom agentfly_lib.resources import *\n"
            "async def main():\n    async with open_process(ProcessSpec()) as p:\n"
            "        await p.run(['sh', '-c', 'setsid sleep 876543 &'])\n        print('up', flush=True)\n"
            "        await asyncio.sleep(1000)\nasyncio.run(main())\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            try:
                assert child.stdout.readline() == "up\n"
                inside = psutil.Process(child.pid).children(recursive=True)
                assert len(inside) >= 3  # bubblewrap, the first process, and what it runs
            finally:
                child.kill()
            _, alive = psutil.wait_procs(inside, timeout=20)
            assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.usefixtures("sandboxes")
class TestWalls:
    async def test_there_is_no_network(self):
        code = (
            "import socket\nfor address in (('1.1.1.1', 53), ('169.254.169.254', 80)):\n"
            "    try: socket.create_connection(address, 2); print('out!')\n"
            "    except OSError as error: print(error)\n"
            "try: print(socket.getaddrinfo('example.org', 80), 'out!')\nexcept OSError as error: print(error)\n"
        )
        assert "out!" not in await attempt(code)

    async def test_servers_of_this_machine_are_not_reached(self):
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('out!')"
            assert "ConnectionRefused" in await attempt(code)

    async def test_sockets_past_the_network_namespace_are_refused(self):
        assert "Operation not permitted" in await attempt("import socket; socket.socket(40, socket.SOCK_STREAM)")

    async def test_nothing_of_our_environment_is_inside(self, monkeypatch):
        monkeypatch.setenv("A_SECRET", "of-ours")
        code = (
            "import os, glob\nprint(dict(os.environ))\n"
            "for path in glob.glob('/proc/*/environ'):\n"
            "    try: print(path, open(path).read())\n    except OSError as error: print(error)\n"
        )
        seen = await attempt(code)
        assert "HOME" in seen
        assert "A_SECRET" not in seen
        assert "of-ours" not in seen

    @pytest.mark.parametrize(
        "path",
        ["/etc/shadow", "/etc/hosts", "/root/.bashrc", "/home", "/var", "/sys", "/run/docker.sock", "/proc/1/root/etc"],
    )
    async def test_files_of_the_machine_are_not_there(self, path):
        assert "Error" in await attempt(
            f"import os; print(os.listdir('{path}') if os.path.isdir('{path}') else open('{path}').read())"
        )

    async def test_this_repository_is_not_there(self):
        assert "FileNotFoundError" in await attempt(f"open({str(Path(__file__))!r})")

    async def test_of_the_interpreters_home_only_the_library_is_there(self):
        code = (
            f"import os; print([sorted(os.listdir(p)) for p in {[str(p) for p in list(Path(PYTHON).parents)[1:3]]!r}])"
        )
        seen = await attempt(code)
        assert ".env" not in seen
        assert "site-packages" not in seen

    @pytest.mark.parametrize(
        "folder", ["/", "/usr", "/etc", "/dev", "/run", "/proc/sys/kernel", "/sys", str(Path(PYTHON).parent)]
    )
    async def test_nothing_can_be_written_but_the_two_places(self, folder):
        assert "Error" in await attempt(f"open('{folder}/x', 'w').write('x')")

    async def test_kernel_settings_are_read_only(self):
        assert "Error" in await attempt("open('/proc/sys/kernel/core_pattern', 'w').write('|/workspace/x')")
        assert "Error" in await attempt("open('/proc/sysrq-trigger', 'w').write('b')")

    async def test_disks_are_limited_wherever_one_can_write(self):
        code = """
import os
for folder in ('/workspace', '/tmp', '/dev/shm'):
    written = 0
    try:
        for n in range(10):
            with open(f'{folder}/{n}', 'wb', buffering=0) as file:
                while file.tell() < 4 << 20: written += file.write(bytes(1 << 20))
    except OSError as error: print(folder, written >> 20, error.strerror)
"""
        seen = await attempt(code)
        assert seen.splitlines() == [f"{f} 8 No space left on device" for f in ("/workspace", "/tmp", "/dev/shm")]

    async def test_a_file_has_its_limit(self):
        code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); open('x', 'wb').write(bytes(5 << 20))"
        assert "File too large" in await attempt(code)

    async def test_memory_is_limited(self):
        assert "MemoryError" in await attempt("bytearray(1 << 30)")

    async def test_open_files_are_limited(self):
        assert "Too many open files" in await attempt("f = [open('/dev/null') for _ in range(1000)]")

    async def test_processor_time_is_limited(self):
        async with open_process(ProcessSpec(cpu_seconds=1)) as process:
            done = await python(process, "while True: pass")
            assert (done.timed_out, done.exit_code) == (False, -signal.SIGKILL)

    async def test_privileges_cannot_be_had(self):
        code = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
status = open('/proc/self/status').read()
wanted = ('CapEff', 'CapPrm', 'NoNewPrivs', 'Seccomp:')
print([line.split()[1] for line in status.splitlines() if line.startswith(wanted)])
print(libc.unshare(0x10000000), libc.mount(b'x', b'/tmp', b'tmpfs', 0, None), libc.ptrace(16, 1, 0, 0))
for call in (lambda: os.setuid(0), lambda: os.kill(1, 9) or print('still here')):
    try: call()
    except OSError: print('refused')
print(os.getuid() != 0)
"""
        lines = (await attempt(code)).splitlines()
        assert lines == [
            "['0000000000000000', '0000000000000000', '1', '2']",
            "-1 -1 -1",
            "refused",
            "still here",
            "True",
        ]

    async def test_the_keeper_cannot_be_spoken_for(self):
        code = "import os; print(os.listdir('/proc/1/fd')); open('/proc/1/fd/1', 'w').write('forged')"
        assert "PermissionError" in await attempt(code)

    async def test_two_sandboxes_do_not_see_each_other(self):
        async with open_process(SMALL) as one, open_process(SMALL) as two:
            await one.run(["sh", "-c", "echo secret > a; echo secret > /tmp/a; sleep 1000 &"])
            assert (await two.run(["ls", "-A", "/workspace", "/tmp"])).stdout == "/tmp:\n\n/workspace:\n"
            assert await processes_inside(two) == []
