"""Follows docs/getting-started.md word for word, as someone new would: in a fresh clone, in one shell, every command.

    python3 tests/docs/walkthrough.py [FOLDER]

What the page says to do with one's hands is done too: the demo is interrupted once and started again, the viewer's
page is fetched and the viewer stopped with Ctrl-C, and the recipe is copied before it is examined. Prints the seconds
of each command; exits 1 at the first one that fails. Needs only a Python and git; takes about ten minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMPT = "--- done "


class Shell:
    """One bash that keeps its folder and its environment, as a person's does."""

    def __init__(self, folder: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: str) -> int:
        """Types a command, shows what it prints, and gives its exit status."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho '{PROMPT}'$?\n")
        for line in self._bash.stdout:
            if line.startswith(PROMPT):
                return int(line.removeprefix(PROMPT))
            print("    " + line, end="", flush=True)
        raise SystemExit("the shell has ended")


def interrupt(command: str, once: Path) -> int:
    """Ctrl-C as soon as a file is there; how the command ended."""
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], start_new_session=True)
    deadline = time.monotonic() + 900
    while not once.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(120)


def looked_at_viewer(command: str) -> int:
    """The page of the viewer, and its end by Ctrl-C."""
    viewer = subprocess.Popen(["bash", "-c", f"source .venv/bin/activate && exec {command}"], start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                page = urllib.request.urlopen("http://127.0.0.1:8300/", timeout=10).read()
                break
            except OSError:
                if time.monotonic() > deadline or viewer.poll() is not None:
                    return 1
                time.sleep(0.2)
        viewer.send_signal(signal.SIGINT)
        viewer.wait(30)
        return 0 if b"000000-" in page or b"000029-" in page else 1
    finally:
        viewer.kill()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="agentfly-walk-"))
    clone = folder / "agentfly"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    os.chdir(clone)
    shell = Shell(clone)
    page = (clone / "docs" / "getting-started.md").read_text()
    for line in "".join(BLOCK.findall(page)).splitlines():
        command = line.split("#")[0].strip()
        if not command:
            continue
        print(f"$ {command}", flush=True)
        began = time.monotonic()
        if command == "make demo":
            print(
                f"^C: exit status {interrupt(command, Path('runs/demo/steps/000001/update.json'))}; again", flush=True
            )
        if "my-recipe.toml" in command:
            shutil.copy("recipes/demo.toml", "my-recipe.toml")
        status = looked_at_viewer(command) if " view " in command else shell.run(command)
        print(f"  {time.monotonic() - began:.1f} s, exit status {status}", flush=True)
        if status:
            raise SystemExit(1)
    print(f"every command of the page worked, in {clone}")


if __name__ == "__main__":
    main()
