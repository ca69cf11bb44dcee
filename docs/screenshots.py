"""Takes the pictures in docs/images again: `python docs/screenshots.py RUN OTHER_RUN [--only NAME ...]`.

RUN and OTHER_RUN are finished runs of the same recipe in one folder (the pictures kept here show `recipes/ci.toml` with
two learning rates). The viewer is served from this process, the Prefect and MLflow pages by `agentfly ui`; Chromium
looks at all of them. Needs Chromium; nothing is fetched from anywhere.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import uvicorn
from PIL import Image

from agentfly_lib.envs.miniwob.devtools import BrowserError, DevTools
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.store.learned import read_learned
from agentfly_lib.store.manifest import read_rollout_manifest
from agentfly_lib.viewer.compare import show_comparison
from agentfly_lib.viewer.web import viewer_app
from agentfly_lib.viewer.web.serve import open_viewer

IMAGES = Path(__file__).parent / "images"
MOST_BYTES = 200_000
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
_PAGES_SECONDS = 240.0
_TRAINING = "workflowType=machine_learning"
"""Else MLflow's page shows an experiment as an application and not as training runs."""
_ALONE = "document.querySelectorAll('button[aria-label=Close i]').forEach(each => each.click())"
_CLICK = "[...document.querySelectorAll('a, button')].find(each => each.innerText.trim() == '{text}')?.click()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture."""

    name: str
    url: str
    width: int = 1360
    height: int = 900
    dark: bool = False
    ready: str = "true"
    """JavaScript that is true once the page is complete."""
    before: str = ""
    """JavaScript that brings the page into the state that is shown."""
    settle: float = 2.0
    """Seconds that it takes then to come to rest."""


class Browser:
    """A Chromium that takes pictures."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            sys.exit("Chromium is not installed: apt-get install chromium")
        command = ["/bin/sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', program, *_FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={folder}", "about:blank"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._tools = DevTools(self._process.stdout.fileno(), self._process.stdin.fileno(), seconds=180)
        targets = self._tools.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._tools.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._call("Page.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def take(self, shot: Shot, *, seconds: float = 120.0) -> bytes:
        """The page as PNG. Raises `BrowserError` if it does not become ready."""
        size = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if shot.dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        for url in (
            "about:blank",
            shot.url,
        ):  # another page first: one that differs only after its # is not loaded anew
            self._tools.forget()
            self._call("Page.navigate", url=url)
            self._tools.wait_for("Page.loadEventFired")
        self._until(shot.ready, seconds)
        if shot.before:
            self._evaluate(shot.before)
        time.sleep(shot.settle)
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def text(self) -> str:
        """What the page says."""
        return self._evaluate("document.body.innerText")

    def _until(self, expression: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._evaluate(expression):
            if time.monotonic() > deadline:
                raise BrowserError(f"after {seconds:.0f} s it is still not so: {expression}\n{self.text()[:2000]}")
            time.sleep(0.3)

    def _evaluate(self, expression: str):
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _call(self, method: str, **parameters: object) -> dict:
        return self._tools.call(method, self._session, **parameters)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("run", type=Path)
    options.add_argument("other", type=Path)
    options.add_argument("--only", nargs="*", default=[], help="Names of pictures; all if not given.")
    options.add_argument("--output", type=Path, default=IMAGES)
    chosen = options.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    if not chosen.only or "compare" in chosen.only:
        show_comparison([chosen.run, chosen.other], figure=chosen.output / "compare.png")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        viewer = stack.enter_context(_viewer(chosen.run, chosen.other))
        shots = [shot for shot in _viewer_shots(viewer, chosen.run) if not chosen.only or shot.name in chosen.only]
        if not chosen.only or any(name.startswith(("prefect", "mlflow")) for name in chosen.only):
            prefect, mlflow = stack.enter_context(_ui(chosen.run.parent))
            pages = _server_shots(prefect, mlflow, chosen.run, chosen.other)
            shots += [shot for shot in pages if not chosen.only or shot.name in chosen.only]
        browser = Browser(folder / "profile")
        stack.callback(browser.close)
        for shot in shots:
            try:
                _save(chosen.output / f"{shot.name}.png", browser.take(shot))
            except BrowserError as error:
                print(f"{shot.name}: {error}", flush=True)
                continue
            print(f"{shot.name}: {(chosen.output / f'{shot.name}.png').stat().st_size:,} bytes", flush=True)


def _viewer_shots(address: str, run: Path) -> Sequence[Shot]:
    step, chain = _liveliest(run)
    group = chain.rpartition("/")[0]
    pairs = f"{address}/pairs?differ=yes"
    return [
        Shot(name="viewer-list", url=f"{address}/", height=980),
        Shot(name="viewer-dark", url=f"{address}/?sort=reward&order=ascending", height=980, dark=True),
        Shot(name="viewer-trajectory", url=f"{address}/train/{step}/{chain}?colour=ratio&at=0&step={step}", height=800),
        Shot(name="viewer-group", url=f"{address}/train/{step}/{group}?colour=advantage", width=1500, height=860),
        Shot(name="viewer-pairs", url=pairs, height=980),
        Shot(name="viewer-pair", url=pairs, height=1000, before="document.querySelector('td.wide a').click()"),
    ]


def _liveliest(run: Path) -> tuple[int, str]:
    """The step and the trajectory whose ratios moved most."""
    directory, best = RunDirectory(run), (0.0, 0, "")
    for step in directory.steps():
        groups = read_rollout_manifest(directory.step(step)).group_ids
        names = [f"{group}/{chain}" for group in groups for chain in range(64)]
        for (name, _), tokens in read_learned(directory.step(step), names).items():
            moved = float(np.nansum(np.abs(tokens.logprobs - tokens.old_logprobs)))
            best = max(best, (moved, step, name))
    return best[1], best[2]


def _server_shots(prefect: str, mlflow: str, run: Path, other: Path) -> Sequence[Shot]:
    flow = _post(f"{prefect}/api/flow_runs/filter", {"flow_runs": {"name": {"any_": [f"train-{run.name}"]}}})[0]["id"]
    key = "".join(letter if letter.isalnum() else "-" for letter in f"report-{run.name}".lower())
    wanted = {"artifacts": {"key": {"any_": [key]}}, "sort": "UPDATED_DESC"}
    artifact = _post(f"{prefect}/api/artifacts/filter", wanted)[0]["id"]
    api = f"{mlflow}/api/2.0/mlflow"
    experiments = _post(f"{api}/experiments/search", {"max_results": 20})["experiments"]
    number = next(each["experiment_id"] for each in experiments if each["name"] == "agentfly")
    found = _post(f"{api}/runs/search", {"experiment_ids": [number], "max_results": 100})["runs"]
    by_name = {each["info"]["run_name"]: each["info"]["run_id"] for each in found}
    ids, of = quote(json.dumps([by_name[run.name], by_name[other.name]])), quote(json.dumps([number]))
    compare = f"{mlflow}/#/compare-runs?runs={ids}&experiments={of}&{_TRAINING}"
    return [
        Shot(
            name="prefect-run",
            url=f"{prefect}/runs/flow-run/{flow}",
            height=900,
            ready=f"document.body.innerText.includes('train-{run.name}')",
            before=_CLICK.format(text="Artifacts"),
            settle=12.0,  # until the graph of its tasks is drawn
        ),
        Shot(
            name="prefect-report",
            url=f"{prefect}/artifacts/artifact/{artifact}",
            height=1300,
            ready="document.body.innerText.includes('Held-out reward')",
        ),
        Shot(
            name="mlflow-compare",
            url=compare,
            width=1300,
            height=600,
            ready=f"document.body.innerText.includes('{run.name}')",
            before=_ALONE,
            settle=6.0,
        ),
    ]


def _post(url: str, body: object) -> Any:
    return httpx.post(url, json=body, timeout=60).raise_for_status().json()


def _save(path: Path, png: bytes) -> None:
    """With as few colours as keep it below its limit."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        small = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        if small.tell() < MOST_BYTES:
            break
    path.write_bytes(small.getvalue())


@contextmanager
def _viewer(run: Path, other: Path) -> Iterator[str]:
    viewer = open_viewer(run, other=other)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(viewer_app(viewer, hosts=["127.0.0.1"]), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def _ui(root: Path) -> Iterator[tuple[str, str]]:
    """Prefect's and MLflow's pages over the runs of a folder."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            ports.append(probe.getsockname()[1])
    command = [sys.executable, "-m", "agentfly_lib", "ui", "--root", str(root)]
    command += ["--prefect-port", str(ports[0]), "--mlflow-port", str(ports[1])]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
        for health in (f"{urls[0]}/api/health", f"{urls[1]}/health"):
            _wait(health, process)
        yield urls[0], urls[1]
    finally:
        process.terminate()
        process.wait(60)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PAGES_SECONDS
    while True:
        try:
            httpx.get(url, timeout=5).raise_for_status()
        except httpx.HTTPError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    main()
