"""A Docker engine that a test may kill and whose disk it may fill: its data are in a small file system in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

__all__ = ["OwnEngine", "own_engine"]

SECONDS = 60.0


class OwnEngine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.url = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for name in ("docker.pid", "exec/containerd/containerd.pid"):  # of one that was killed
            (self.folder / name).unlink(missing_ok=True)
        command = [
            "dockerd", "--data-root", self.data, "--exec-root", self.folder / "exec", "-H", self.url,
            "--pidfile", self.folder / "docker.pid", "--bridge=none", "--iptables=false", "--ip6tables=false",
            "--ip-forward=false", "--ip-masq=false",
        ]  # fmt: skip
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + SECONDS
        while subprocess.run(["docker", "-H", self.url, "version"], capture_output=True, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"no Docker engine of our own can start: {(self.folder / 'log').read_text()[-300:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """As the machine would, if it ran out of memory."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def clean(self) -> None:
        """Ends what a killed engine has left running, and unmounts everything."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.folder) in " ".join(process.cmdline()):  # a shim, which holds the processes of a container
                    for each in (*process.children(recursive=True), process):
                        each.kill()
        places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for place in reversed([place for place in places if place.startswith(str(self.folder))]):
            subprocess.run(["umount", "-l", place], check=False)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(SECONDS)


@contextlib.contextmanager
def own_engine(folder: Path, monkeypatch: pytest.MonkeyPatch, *, disk_mib: int = 256) -> Iterator[OwnEngine]:
    """An engine for the length of the block, as the one of this process's environment."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("an engine of our own takes root and an installed dockerd")
    engine = OwnEngine(folder)
    engine.data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "tmpfs", str(engine.data)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system in memory can be mounted here")
    try:
        engine.start()
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        yield engine
    finally:
        engine.stop()
        engine.clean()
