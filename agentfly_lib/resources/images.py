"""Images of containers: found, pulled, or built from a folder, with word of how it goes. Blocking."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentfly_lib.errors import InfrastructureError, SandboxUnavailableError
from agentfly_lib.resources.docker_engine import DockerEngine
from agentfly_lib.resources.owner import LABEL

__all__ = ["ImageProgress", "ensure_image", "log_progress"]

logger = logging.getLogger(__name__)

_CONTEXT = f"{LABEL}.context"
"""Label of a built image: the hash of what it was built from."""
_OURS = re.compile(r"(docker\.io/)?(library/)?agentfly[-/]")
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProgress:
    """How far the pull or the build of an image is."""

    image: str
    step: str
    """In the engine's words."""
    done_bytes: int = 0
    total_bytes: int = 0
    """Of the layers that are known so far; 0 while building."""


def ensure_image(
    engine: DockerEngine,
    image: str,
    *,
    build: str | None = None,
    pull: bool = True,
    progress: Callable[[ImageProgress], None],
) -> None:
    """Has `image` at hand: found; or built from the folder `build`, also if that has changed since; or pulled.

    One of ours (`agentfly-...`, `agentfly/...`) is never pulled: nobody publishes those, so that anybody could.

    Raises `SandboxUnavailableError` if it cannot be had, `InfrastructureError` if the engine fails.
    """
    import docker.errors

    with _one_at_a_time:
        context = _context_hash(Path(build)) if build is not None else None
        try:
            with engine.errors():
                found = engine.client.images.get(image)
            if context is None or found.labels.get(_CONTEXT) == context:
                return
        except docker.errors.NotFound:
            pass
        if build is not None and context is not None:
            _build(engine, image, build, context, progress)
        elif _OURS.match(image):
            raise SandboxUnavailableError(f"image {image} is not here: build it, as the head of its Dockerfile says")
        elif not pull:
            raise SandboxUnavailableError(
                f"image {image} is not here, and the settings do not allow pulling it; build or load it (`docker load`)"
            )
        else:
            _pull(engine, image, progress)


def log_progress(seconds: float = 5.0) -> Callable[[ImageProgress], None]:
    """A callback that writes to the log, no more often than this."""
    last = -seconds

    def tell(now: ImageProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            size = f", {now.done_bytes / 2**20:.0f} of {now.total_bytes / 2**20:.0f} MiB" if now.total_bytes else ""
            logger.info("image %s: %s%s", now.image, now.step, size)

    return tell


def _pull(engine: DockerEngine, image: str, progress: Callable[[ImageProgress], None]) -> None:
    import docker.errors

    name, _, tag = image.partition("@") if "@" in image else image.rpartition(":")
    if not name or "/" in tag:
        name, tag = image, "latest"
    layers: dict[str, tuple[int, int]] = {}
    try:
        with engine.errors():
            lines = engine.client.api.pull(name, tag=tag, stream=True, decode=True)
            for line in _without_errors(lines, f"image {image} cannot be pulled"):
                detail = line.get("progressDetail") or {}
                if "total" in detail:
                    layers[line.get("id", "")] = (detail.get("current", 0), detail["total"])
                done, total = (sum(sizes) for sizes in zip(*layers.values(), strict=True)) if layers else (0, 0)
                progress(ImageProgress(image=image, step=line.get("status", ""), done_bytes=done, total_bytes=total))
    except (docker.errors.NotFound, InfrastructureError) as error:
        raise SandboxUnavailableError(
            f"image {image} is not here and cannot be pulled ({error}): build or load it (`docker load`, "
            "`docker import`), or name another"
        ) from error


def _build(
    engine: DockerEngine, image: str, folder: str, context: str, progress: Callable[[ImageProgress], None]
) -> None:
    with engine.errors():
        lines = engine.client.api.build(
            path=folder, tag=image, labels={_CONTEXT: context}, rm=True, forcerm=True, decode=True
        )
        for line in _without_errors(lines, f"image {image} cannot be built from {folder}"):
            if step := line.get("stream", line.get("status", "")).strip():
                progress(ImageProgress(image=image, step=step))


def _without_errors(lines: Iterable[dict[str, Any]], what: str) -> Iterable[dict[str, Any]]:
    for line in lines:
        if "error" in line:
            raise SandboxUnavailableError(f"{what}: {line['error'].strip()}")
        yield line


def _context_hash(folder: Path) -> str:
    """Of names, modes and contents. Raises `SandboxUnavailableError` if there is no Dockerfile."""
    if not (folder / "Dockerfile").is_file():
        raise SandboxUnavailableError(f"{folder} has no Dockerfile to build an image from")
    total = hashlib.sha256()
    for top, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(top, name)
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            head = f"{path.relative_to(folder)}\0{path.lstat().st_mode}\0{len(content)}\0"
            total.update(head.encode() + content)
    return total.hexdigest()
