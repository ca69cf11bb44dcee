"""A Chromium of one's own, locked up: no network, nothing of the machine but its programs, and an end that is certain.

It runs in namespaces made by bubblewrap, which takes the place of Chromium's own sandbox: whatever a page does, there
is no interface to send on, no file to read and no process to reach, and the profile is in memory. When the process that
started it ends, or `close` is called, the kernel ends all of its processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentfly_lib.envs.miniwob.devtools import BrowserError, DevTools
from agentfly_lib.errors import SandboxUnavailableError

__all__ = ["Chromium", "find_browser"]

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_BINARIES = ("/usr/lib/chromium/chromium", "/usr/lib/chromium-browser/chromium-browser", "/opt/google/chrome/chrome")
"""What those programs start, in the end, where they are scripts."""
_FLAGS = (
    "--headless",
    "--no-sandbox",  # bubblewrap is the sandbox
    "--no-zygote",
    "--remote-debugging-pipe",
    "--user-data-dir=/tmp/profile",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    # The menu of an address bar that nobody sees has pages of its own.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,MediaRouter,OptimizationHints,Translate",
    "--disable-sync",
    "--block-new-web-contents",
    "--deny-permission-prompts",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--in-process-gpu",
    "--js-flags=--max-old-space-size=256",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--renderer-process-limit=1",
)
_SHELL = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null'
"""Chromium reads commands from descriptor 3 and answers on 4."""
_TEMPORARY_BYTES = 256 << 20
KILL_SECONDS = 10.0


def find_browser() -> tuple[str, str]:
    """Bubblewrap and Chromium. Raises `SandboxUnavailableError` naming the package that is missing."""
    wrapper = shutil.which("bwrap")
    browser = next(filter(None, (*map(_executable, _BINARIES), *map(shutil.which, _PROGRAMS))), None)
    missing = [name for name, found in (("bubblewrap", wrapper), ("chromium", browser)) if found is None]
    if wrapper is None or browser is None:
        raise SandboxUnavailableError(
            f"the environment miniwob needs Chromium inside bubblewrap: `apt-get install {' '.join(missing)}`"
        )
    return wrapper, browser


class Chromium:
    """A running browser with one page. Raises `BrowserError` if it does not start."""

    def __init__(self, folders: Mapping[str, Path], *, seconds: float) -> None:
        """`folders`: more of the machine that it sees, read-only, by their places inside. `seconds`: of a call."""
        wrapper, browser = find_browser()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        arguments = [wrapper, *_namespaces(browser), *_mounts(folders), "--", "/bin/sh", "-c", _SHELL, browser, *_FLAGS]
        self._process = subprocess.Popen(
            [*arguments, "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            read, write = self._process.stdout.fileno(), self._process.stdin.fileno()
            self.tools = DevTools(read, write, seconds=seconds)
            pages = self.tools.call("Target.getTargets")["targetInfos"]
            page = next(target["targetId"] for target in pages if target["type"] == "page")
            self.session: str = self.tools.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        except (BrowserError, StopIteration) as error:
            said = self._said()
            self.close()
            raise BrowserError(f"Chromium did not start: {error}. {said}".strip()) from error

    @property
    def pid(self) -> int:
        """Of the process on top of all of its."""
        return self._process.pid

    def close(self) -> None:
        """Kills it with all that it started. A second call does nothing."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        for file in (self._process.stdin, self._process.stdout, self._complaints):
            with contextlib.suppress(OSError):  # what was still to be written
                if file is not None:
                    file.close()

    def _said(self) -> str:
        self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, self._complaints.tell() - 1000))
        return " ".join(self._complaints.read().decode("utf-8", "replace").split())


def _namespaces(browser: str) -> list[str]:
    return [
        *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *("--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--setenv", "HOME", "/tmp", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8"),  # noqa: S108
        *("--setenv", "TZ", "UTC", "--chdir", "/tmp"),  # noqa: S108
        *(("--ro-bind", "/opt/google", "/opt/google") if browser.startswith("/opt/google/") else ()),
    ]


def _mounts(folders: Mapping[str, Path]) -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/fonts", "/etc/fonts"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        place = Path(name)
        if place.is_symlink():
            arguments += ["--symlink", str(place.readlink()), name]
        elif place.is_dir():
            arguments += ["--ro-bind", name, name]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--size", str(_TEMPORARY_BYTES), "--tmpfs", "/tmp"]  # noqa: S108
    for place, folder in folders.items():
        arguments += ["--ro-bind", str(folder.resolve()), place]
    return [*arguments, "--remount-ro", "/"]


def _executable(path: str) -> str | None:
    return path if os.access(path, os.X_OK) else None
