"""What runs inside a workspace for the environment: one request as JSON on standard input, one answer on the output.

Standard library only, and no newer than Python 3.9, because it runs on the interpreter of the repository's image. The
tests run in this process too. What they found is told with a word that is not theirs, on a descriptor that is not their
output, so that nothing is proved by what code prints or how it exits; code that searches its interpreter's memory for
the word could still forge it, as with all tests that share a process with what they test.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["main"]

NEVER = (".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".hg")
"""Folders whose content is no part of the work."""


class Refused(Exception):
    """Why a request cannot be done."""


def unpack(folder: str, archive: str) -> dict[str, Any]:
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive)), mode="r:*") as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)  # noqa: S202  in a sandbox, from the problem's own archive
    return {}


def copy(folder: str, source: str) -> dict[str, Any]:
    if not os.path.isdir(source):
        raise Refused(f"there is no folder {source}")
    shutil.copytree(source, folder, symlinks=True)
    return {}


def manifest(folder: str) -> dict[str, Any]:
    return {"files": {path: digest(os.path.join(folder, path)) for path in files(folder)}}


def changes(folder: str, before: dict[str, str], protected: list[str], max_bytes: int) -> dict[str, Any]:
    """Files that are new or other than `before`, with their content, and those that are gone."""
    found: dict[str, Any] = {}
    size, there = 0, set(files(folder))
    for path in sorted(there):
        full = os.path.join(folder, path)
        if is_protected(path, protected) or before.get(path) == digest(full):
            continue
        size += os.path.getsize(full)
        if size > max_bytes:
            raise Refused(f"what was changed has more than {max_bytes} bytes")
        with open(full, "rb") as file:
            found[path] = [os.stat(full).st_mode & 0o777, base64.b64encode(file.read()).decode()]
    gone = sorted(path for path in before if path not in there and not is_protected(path, protected))
    return {"changed": found, "deleted": gone}


def apply(folder: str, changed: dict[str, Any], deleted: list[str]) -> dict[str, Any]:
    for path in deleted:
        place, name = opened(folder, path, make=False)
        os.unlink(name, dir_fd=place)
        os.close(place)
    for path, (mode, content) in changed.items():
        place, name = opened(folder, path, make=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)
        with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=place), "wb") as file:
            file.write(base64.b64decode(content))
            os.fchmod(file.fileno(), mode)
        os.close(place)
    return {}


def opened(folder: str, path: str, *, make: bool) -> tuple[int, str]:
    """The folder of a file, and the file's name in it. A link of the repository on the way is not followed.

    It could lead to what the policy may not decide about. If folders may be made, one takes its place.
    """
    *parents, name = inside(path)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    place = os.open(folder, flags)
    for parent in parents:
        if make:
            if stat.S_ISLNK(mode_of(parent, place)):
                os.unlink(parent, dir_fd=place)
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, dir_fd=place)
        inner = os.open(parent, flags, dir_fd=place)
        os.close(place)
        place = inner
    return place, name


def mode_of(name: str, place: int) -> int:
    try:
        return os.lstat(name, dir_fd=place).st_mode
    except FileNotFoundError:
        return 0


def test(folder: str, runner: str, tests: list[str]) -> dict[str, Any]:
    """The outcome of each of these tests: whether it passed."""
    sys.path[:] = [place for place in sys.path if place]  # a repository could have a unittest.py of its own
    run = load_pytest() if runner == "pytest" else load_unittest()
    os.chdir(folder)
    sys.path.insert(0, folder)
    return {"passed": run(tests)}


def load_unittest() -> Callable[[list[str]], dict[str, bool]]:
    import unittest

    def passes(name: str) -> bool:
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromName(dotted(name)).run(result)
        failed = result.failures or result.errors or result.unexpectedSuccesses
        return not failed and result.testsRun > len(result.skipped)

    return lambda tests: {name: passes(name) for name in tests}


def dotted(name: str) -> str:
    """`test_add (tests.test_sum.TestSum)`, as unittest prints it, is `tests.test_sum.TestSum.test_add`."""
    found = re.match(r"(\w+) \(([\w.]+)\)$", name)
    if not found:
        return name
    method, place = found.groups()
    return place if place.endswith("." + method) else place + "." + method


def load_pytest() -> Callable[[list[str]], dict[str, bool]]:
    import pytest

    passed: dict[str, bool] = {}

    class Recorder:
        def pytest_runtest_logreport(self, report: Any) -> None:
            fine = report.passed if report.when == "call" else not report.failed
            if report.when == "call" or not fine:
                passed[report.nodeid] = fine and passed.get(report.nodeid, True)

    def run(tests: list[str]) -> dict[str, bool]:
        # Whole files: a test that is missing must not keep the others from running.
        places = [place for place in dict.fromkeys(name.split("::")[0] for name in tests) if os.path.exists(place)]
        if places:
            pytest.main(["-q", "-p", "no:cacheprovider", *places], plugins=[Recorder()])
        return {name: passed.get(name, False) for name in tests}

    return run


def files(folder: str) -> list[str]:
    """Regular files, by their paths in the folder."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in NEVER]
        for name in names:
            full = os.path.join(place, name)
            if os.path.isfile(full) and not os.path.islink(full):
                found.append(os.path.relpath(full, folder).replace(os.sep, "/"))
    return found


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def is_protected(path: str, patterns: Sequence[str]) -> bool:
    parts = path.split("/")
    return any(
        path == pattern or fnmatch.fnmatchcase(path, pattern)
        if "/" in pattern
        else any(fnmatch.fnmatchcase(part, pattern) for part in parts)
        for pattern in patterns
    )


def inside(path: str) -> list[str]:
    """The parts of a file's path, of which there is one way to write each."""
    parts = path.split("/")
    if any(part in ("", ".", "..", *NEVER) or "\0" in part for part in parts):
        raise Refused(f"{path!r} is not in the repository")
    return parts


ACTIONS = {"copy": copy, "unpack": unpack, "manifest": manifest, "changes": changes, "apply": apply, "test": test}


def main() -> None:
    """Does the request on standard input."""
    request = json.load(sys.stdin)
    word = request.pop("word", "")
    answers = os.dup(1)
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 0)
    os.dup2(2, 1)  # what tests print is for reading, not for us
    try:
        answer = ACTIONS[request.pop("action")](**request)
    except Refused as error:
        answer = {"error": str(error)}
    except (OSError, ValueError, tarfile.TarError, shutil.Error) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(answers, "w") as file:
        file.write(json.dumps({"word": word, "answer": answer}))
    sys.stderr.flush()
    os._exit(0)  # threads of the tests, or what they have left to run at the end, are no more of interest


if __name__ == "__main__":
    main()
