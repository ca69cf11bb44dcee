"""An environment's image on the real engine: its own Dockerfile, but for what needs a registry or a network.

The base image is made of this machine's files, and the packages come from this environment instead of an index. All
else is built as it stands: the layers, the user, the program, the health check.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.test_images import IMAGES, REPOSITORY, Dockerfile, packages_of

pytestmark = [pytest.mark.container, pytest.mark.slow]

PACKAGES = "/packages"
SECONDS = 240.0


def libraries(files: list[Path]) -> set[Path]:
    """Shared libraries of the machine that these need."""
    text = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"=> (/\S+) \(0x", text)}
    return {path for path in found if "site-packages" not in path.parts and "dist-packages" not in path.parts}


def context(name: str, base: str) -> bytes:
    """What the engine is handed to build from: Dockerfile, sources, packages."""
    stage = Dockerfile.read(IMAGES / f"{name}.Dockerfile").last
    lines = [f"FROM {base}", "COPY machine/ /", f"ENV PYTHONPATH={PACKAGES}"]
    lines += [f"{each.word} {each.rest}" for each in stage if each.word not in ("FROM", "RUN", "SHELL")]
    packages: dict[Path, str] = {}
    for package in packages_of(name):
        try:
            owner = distribution(package)
        except PackageNotFoundError:  # of another platform
            continue
        for file in owner.files or ():
            path = Path(str(owner.locate_file(file)))
            if ".." not in file.parts and path.is_file() and "__pycache__" not in file.parts:
                packages[path] = f"machine{PACKAGES}/{file}"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        text = "\n".join(lines).encode()
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
        for source in ("agentfly_lib", "requirements"):
            tar.add(REPOSITORY / source, source, filter=lambda each: None if "__pycache__" in each.name else each)
        for path, inside in packages.items():
            tar.add(path, inside)
        for path in libraries([path for path in packages if ".so" in path.suffixes]):
            tar.add(path.resolve(), f"machine/usr/lib/{path.name}")
        link = tarfile.TarInfo("machine/usr/bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, "python3"
        tar.addfile(link)
    return out.getvalue()


@pytest.mark.timeout(900)
def test_chess_is_built_serves_and_is_healthy(container_image: str) -> None:
    pytest.importorskip("chess", reason="the packages of the environments are not installed (make envs)")
    from agentfly_lib.resources.docker_engine import docker_engine

    client: Any = docker_engine().client
    image, _ = client.images.build(
        fileobj=io.BytesIO(context("chess", container_image)), custom_context=True, rm=True, forcerm=True
    )
    container = None
    try:
        assert image.attrs["Config"]["User"] == "10001"
        container = client.containers.run(
            image.id,
            detach=True,
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            healthcheck={"interval": 1_000_000_000, "start_period": 600_000_000_000},
        )
        deadline = time.monotonic() + SECONDS
        while container.attrs["State"].get("Health", {}).get("Status") != "healthy":
            assert container.attrs["State"]["Status"] in ("created", "running"), container.logs().decode()[-3000:]
            assert time.monotonic() < deadline, container.attrs["State"]["Health"]
            time.sleep(0.2)
            container.reload()
        status, said = container.exec_run(["python", "-c", "import os; print(os.getuid())"])
        assert (status, said.strip()) == (0, b"10001")
        program = (
            "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/health', timeout=8).read().decode())"
        )
        status, said = container.exec_run(["python", "-c", program])
        assert status == 0
        assert b'"kind": "chess"' in said
    finally:
        if container is not None:
            container.remove(force=True)
        client.images.remove(image.id, force=True)
