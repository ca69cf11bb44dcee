"""A PostgreSQL server of its own in a temporary folder, from whatever version the machine has."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["free_port", "postgres", "postgres_missing"]

_START_SECONDS = 120.0
_QUICK = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=200"]
"""A crash of the machine loses the data, which nobody wants."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def postgres_missing() -> str | None:
    """Why there is no PostgreSQL here; None if there is."""
    if _programs() is None:
        return "PostgreSQL is not installed (Debian's package: postgresql)"
    if os.getuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no user postgres"
    return None


@contextlib.contextmanager
def postgres(*databases: str) -> Iterator[int]:
    """Serves the empty databases on a port of 127.0.0.1, to the user `agentfly`, without a password."""
    programs, user = _programs(), _user()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # the socket's path must be short
    port, data = free_port(), folder / "data"
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def run(program: str, *arguments: str) -> None:
        subprocess.run([programs / program, *arguments], check=True, capture_output=True, cwd=folder, **identity)

    settings = [part for setting in _QUICK for part in ("-c", setting)]
    address = ["-h", str(folder), "-p", str(port), "-U", "agentfly"]
    try:
        run("initdb", "-D", str(data), "-U", "agentfly", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", folder, "-p", str(port), "-h", "127.0.0.1", *settings],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **identity,
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while subprocess.run([programs / "pg_isready", *address[:4]], capture_output=True, check=False).returncode:
                assert server.poll() is None, "PostgreSQL ended"
                assert time.monotonic() < deadline, "PostgreSQL did not answer"
                time.sleep(0.05)
            for database in databases:
                run("createdb", *address, database)
            yield port
        finally:
            server.send_signal(signal.SIGINT)  # its quick way to end
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if found:
        return found[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def _user() -> pwd.struct_passwd | None:
    """Whom the server runs as, if not as us."""
    if os.getuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None
