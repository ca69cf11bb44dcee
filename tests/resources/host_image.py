"""An image made of this machine's own files, because a test reaches no registry: a shell, some tools, and a Python.

Only what the tests need is in it. It is imported into the engine once per session, under a name that tells what it is
made of.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

__all__ = ["host_image"]

PROGRAMS = (
    "sh",
    "bash",
    "cat",
    "env",
    "id",
    "ls",
    "mkdir",
    "ps",
    "rm",
    "sleep",
    "setsid",
    "touch",
    "ln",
    "dd",
    "mount",
)
LEFT_OUT = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages", "dist-packages",
            "__pycache__", "config-3.11-x86_64-linux-gnu", "pydoc_data"}  # fmt: skip
FOLDERS = ("tmp", "proc", "sys", "dev", "etc", "root", "workspace", "usr/bin", "usr/lib", "lib64")
USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/workspace:/bin/sh\n"


def host_image(client: Any) -> str:
    """Imports the image if the engine lacks it; its name."""
    data = _archive()
    image = f"agentfly-test-host:{hashlib.sha256(data).hexdigest()[:12]}"
    if not client.images.list(name=image):
        repository, tag = image.split(":")
        client.api.import_image_from_data(data, repository=repository, tag=tag, changes=["ENV PATH=/usr/bin:/bin"])
    return image


def _archive() -> bytes:
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    extensions = [path for path in sorted((library / "lib-dynload").glob("*.so")) if not _unneeded(path)]
    programs = [Path(found).resolve() for name in PROGRAMS if (found := shutil.which(name))]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in FOLDERS:
            _folder(tar, name)
        for name, target in (("bin", "usr/bin"), ("lib", "usr/lib"), ("sbin", "usr/bin")):
            _link(tar, name, target)
        for name in PROGRAMS:
            if found := shutil.which(name):
                _file(tar, Path(found).resolve(), f"usr/bin/{name}")
        _file(tar, python, str(python).lstrip("/"))
        _link(tar, "usr/bin/python3", str(python))
        for path in sorted(_needed([python, *programs, *extensions])):
            name = path.lstrip("/")
            _file(tar, Path(path), f"usr/{name}" if name.startswith("lib/") else name)
        for path in sorted(library.rglob("*")):
            if path.is_file() and not LEFT_OUT & set(path.relative_to(library).parts) and not _unneeded(path):
                _file(tar, path, str(path).lstrip("/"))
        info = _info("etc/passwd", size=len(USERS))
        tar.addfile(info, io.BytesIO(USERS.encode()))
    return out.getvalue()


def _unneeded(path: Path) -> bool:
    return path.suffix == ".a" or path.name.startswith(("_tkinter", "_sqlite3", "_dbm", "_gdbm", "_curses", "_test"))


def _needed(programs: list[Path]) -> set[str]:
    """Shared libraries, as the loader finds them."""
    text = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", text, re.MULTILINE))


def _info(name: str, *, size: int = 0, mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    return info


def _folder(tar: tarfile.TarFile, name: str) -> None:
    info = _info(name, mode=0o1777 if name == "tmp" else 0o755)
    info.type = tarfile.DIRTYPE
    tar.addfile(info)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = _info(name, mode=0o777)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _file(tar: tarfile.TarFile, path: Path, name: str) -> None:
    data = path.read_bytes()
    tar.addfile(_info(name, size=len(data), mode=0o755 if path.stat().st_mode & 0o111 else 0o644), io.BytesIO(data))
