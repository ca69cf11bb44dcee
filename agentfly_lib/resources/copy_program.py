"""What runs inside a sandbox to copy files in and out: one request as JSON on standard input, one answer on the output.

Standard library only. Files travel in pieces, so that neither side ever holds much of them:

    {"op": "write", "root", "pieces": [piece, ...]} -> {}
    {"op": "read", "root", "after", "bytes"}        -> {"pieces": [piece, ...], "next"}

A piece is `{"path", "kind": "folder" | "file" | "link", "mode", "offset", "data", "target"}`; paths are relative to the
root, data are base64. A read goes through the tree in the order of names and does not follow links; `next` is the path
and offset at which another one goes on (`after`), or null. What is neither file, folder nor link is of kind "other".
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from typing import Any

__all__ = ["main"]


def write(root: str, pieces: list[dict[str, Any]]) -> dict[str, Any]:
    os.makedirs(root, exist_ok=True)
    for piece in pieces:
        path = os.path.join(root, piece["path"])
        if piece["kind"] == "folder":
            os.makedirs(path, exist_ok=True)
        elif piece["kind"] == "link":
            os.symlink(piece["target"], path)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if piece["offset"] else os.O_TRUNC)
            descriptor = os.open(path, flags, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.seek(piece["offset"])
                file.write(base64.b64decode(piece["data"]))
                os.fchmod(file.fileno(), piece["mode"])
    return {}


def read(root: str, after: list[Any] | None, budget: int) -> dict[str, Any]:
    pieces: list[dict[str, Any]] = []
    single = not os.path.isdir(root) or os.path.islink(root)
    for path, real in [(os.path.basename(root), root)] if single else walk(root):
        offset = 0
        if after is not None:
            if path != after[0]:
                continue
            offset, after = after[1], None
        while True:
            if budget <= 0:
                return {"pieces": pieces, "next": [path, offset]}
            piece = look(path, real, offset, budget)
            pieces.append(piece)
            length = piece.pop("length")
            budget -= length + 6 * len(path) + 256
            offset += length
            if not piece.pop("more"):
                break
    if after is not None:
        return {"error": f"{after[0]} went away while it was copied"}
    return {"pieces": pieces, "next": None}


def walk(root: str) -> Any:
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(folders + files):
            real = os.path.join(folder, name)
            yield os.path.relpath(real, root), real


def look(path: str, real: str, offset: int, budget: int) -> dict[str, Any]:
    found = os.lstat(real)
    piece = {"path": path, "mode": stat.S_IMODE(found.st_mode), "offset": offset, "length": 0, "more": False}
    if stat.S_ISLNK(found.st_mode):
        return {**piece, "kind": "link", "target": os.readlink(real)}
    if stat.S_ISDIR(found.st_mode):
        return {**piece, "kind": "folder"}
    if not stat.S_ISREG(found.st_mode):
        return {**piece, "kind": "other"}
    with os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        file.seek(offset)
        data = file.read(budget)
        more = bool(data) and bool(file.read(1))
    return {**piece, "kind": "file", "data": base64.b64encode(data).decode(), "length": len(data), "more": more}


def main() -> None:
    request = json.load(sys.stdin)
    try:
        if request["op"] == "write":
            answer = write(request["root"], request["pieces"])
        else:
            answer = read(request["root"], request["after"], request["bytes"])
    except OSError as error:
        answer = {"error": f"{error.filename or request['root']}: {error.strerror}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
