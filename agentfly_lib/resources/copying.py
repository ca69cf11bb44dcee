"""Copies trees of files into a sandbox and out of it, through a program that runs inside (`copy_program`).

What comes out was written by nobody we trust. Each name and link is checked before anything is made of it, and files
are opened folder by folder without following links, so that what was made a moment ago cannot lead out either.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from agentfly_lib.errors import SandboxError
from agentfly_lib.resources import copy_program

if TYPE_CHECKING:
    from agentfly_lib.resources.ray import RemoteResource
    from agentfly_lib.resources.sandbox import Sandbox

__all__ = ["COPY_BYTES", "read_tree", "write_tree"]

COPY_BYTES = 1 << 28
"""Most that is copied out at once."""
_PIECE_BYTES = 1 << 20
_STEP_SECONDS = 60.0
_MAX_NAMES = 100_000


async def write_tree(sandbox: Sandbox | RemoteResource, source: Path, target: str) -> None:
    """See `Sandbox.copy_in`."""
    batch: list[dict[str, Any]] = []
    size = 0
    for piece in await asyncio.to_thread(_names, source):
        for part in _parts(source, piece):
            batch.append(part)
            size += len(part.get("data", "")) + 256
            if size >= _PIECE_BYTES:
                await _inside(sandbox, {"op": "write", "root": target, "pieces": batch})
                batch, size = [], 0
    await _inside(sandbox, {"op": "write", "root": target, "pieces": batch})


async def read_tree(sandbox: Sandbox | RemoteResource, source: str, target: Path, max_bytes: int) -> None:
    """See `Sandbox.copy_out`."""
    await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
    after, total, names = None, 0, 0
    while True:
        answer = await _inside(sandbox, {"op": "read", "root": source, "after": after, "bytes": _PIECE_BYTES})
        try:
            pieces = [_checked(piece) for piece in answer["pieces"]]
            after = answer["next"]
            if after is not None and not pieces:
                raise ValueError("nothing, and more of it")
        except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
            raise SandboxError(f"{source} cannot be copied: what came out is not a file ({error})") from error
        total += sum(len(piece.get("data", b"")) for piece in pieces)
        names += len(pieces)
        if total > max_bytes or names > _MAX_NAMES:
            raise SandboxError(f"{source} is more than {max_bytes} bytes or {_MAX_NAMES} names, and is not copied")
        for piece in pieces:
            await asyncio.to_thread(_make, target, piece)
        if after is None:
            return


async def _inside(sandbox: Sandbox | RemoteResource, request: dict[str, Any]) -> dict[str, Any]:
    done = await sandbox.run(
        [sandbox.python, "-I", "-S", "-c", _program()],
        stdin=json.dumps(request),
        seconds=_STEP_SECONDS,
        max_bytes=4 * _PIECE_BYTES,
    )
    try:
        answer = json.loads(done.stdout)
    except (ValueError, RecursionError) as error:
        why = "it took too long" if done.timed_out else done.stderr.strip()[-300:] or f"exit code {done.exit_code}"
        raise SandboxError(f"{request['root']} cannot be copied: {why}") from error
    if not isinstance(answer, dict) or "error" in answer:
        raise SandboxError(f"{request['root']} cannot be copied: {str(answer)[:300]}")
    return answer


def _names(source: Path) -> list[dict[str, Any]]:
    """Everything to be copied in, by name; files without their content. Raises `SandboxError` for what is refused."""
    if source.is_symlink() or not source.is_dir():
        root, found = source.parent, [source]
    else:
        root, found = source, [Path(top, name) for top, folders, files in os.walk(source) for name in folders + files]
    pieces = []
    for path in found:
        relative = path.relative_to(root)
        piece: dict[str, Any] = {"path": str(relative), "offset": 0, "mode": path.lstat().st_mode & 0o777}
        if path.is_symlink():
            link = os.readlink(path)
            if _leads_out(relative, link):
                raise SandboxError(f"{path} is a link to {link}, outside of what is copied, and is refused")
            pieces.append({**piece, "kind": "link", "target": link})
        elif path.is_dir():
            pieces.append({**piece, "kind": "folder"})
        elif path.is_file():
            pieces.append({**piece, "kind": "file"})
        else:
            raise SandboxError(f"{path} is neither a file nor a folder, and is refused")
    return pieces


def _parts(source: Path, piece: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if piece["kind"] != "file":
        yield piece
        return
    path = source if source.is_file() else source / piece["path"]
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        data = file.read(_PIECE_BYTES)
        while True:
            yield {**piece, "data": base64.b64encode(data).decode()}
            piece = {**piece, "offset": piece["offset"] + len(data)}
            data = file.read(_PIECE_BYTES)
            if not data:
                return


def _checked(piece: dict[str, Any]) -> dict[str, Any]:
    """A piece that came out, if it may be made. Raises `SandboxError` if not."""
    path, kind = PurePosixPath(piece["path"]), piece["kind"]
    for name in (str(path), piece["target"] if kind == "link" else ""):
        os.fsencode(name)  # raises for what no file can be called
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in str(path):
        raise SandboxError(f"{str(path)[:200]!r} points outside of what is copied, and is refused")
    if kind == "link" and _leads_out(path, piece["target"]):
        raise SandboxError(f"{str(path)[:200]!r} is a link that points outside of what is copied, and is refused")
    if kind not in ("file", "folder", "link"):
        raise SandboxError(f"{str(path)[:200]!r} is neither a file nor a folder, and is refused")
    checked = {**piece, "path": path, "mode": int(piece["mode"]) & 0o755 | 0o600, "offset": int(piece["offset"])}
    return checked | ({"data": base64.b64decode(piece["data"], validate=True)} if kind == "file" else {})


def _leads_out(path: Path | PurePosixPath, link: str) -> bool:
    """Whether a link might. It may climb first, up to the root, and then go down, perhaps through links of that kind.

    One that climbs after a name could climb from where another link has led.
    """
    parts = PurePosixPath(link).parts
    climbs = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return link.startswith("/") or "\0" in link or climbs > len(path.parts) - 1 or ".." in parts[climbs:]


def _make(target: Path, piece: dict[str, Any]) -> None:
    """Makes one piece below `target`; folders on the way are opened one by one, and links among them refused."""
    path: PurePosixPath = piece["path"]
    try:
        with _folder(target, path.parts[:-1]) as folder:
            name = path.parts[-1]
            if piece["kind"] == "folder":
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, piece["mode"] | 0o700, dir_fd=folder)
            elif piece["kind"] == "link":
                os.symlink(piece["target"], name, dir_fd=folder)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if piece["offset"] else os.O_TRUNC)
                with os.fdopen(os.open(name, flags, piece["mode"], dir_fd=folder), "wb") as file:
                    if os.fstat(file.fileno()).st_size != piece["offset"]:
                        raise SandboxError(f"{str(path)[:200]!r} came out in pieces that do not follow each other")
                    file.seek(piece["offset"])
                    file.write(piece["data"])
    except OSError as error:
        raise SandboxError(f"{str(path)[:200]!r} cannot be made in {target}: {error.strerror}") from error


@contextlib.contextmanager
def _folder(target: Path, parts: tuple[str, ...]) -> Iterator[int]:
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@functools.cache
def _program() -> str:
    return Path(copy_program.__file__).read_text(encoding="utf-8")
