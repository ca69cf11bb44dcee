"""What runs inside a sandbox to work on files: one request as JSON on standard input, one answer on the output.

Standard library only. The answer is `{"text": ...}` and for changes `{"before": ...}` too (the old content, null for a
file that was not there), or `{"error": ...}`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

MAX_ENTRIES = 500
MAX_MATCHES = 100
MAX_LINES = 1000
MAX_LINE = 500
MAX_TEXT = 1 << 18
"""Bytes of a file that can be read or changed as text."""


class Refused(Exception):
    """Why a request cannot be done, for the model."""


def list_files(path: str, depth: int) -> dict[str, Any]:
    folder = Path(path)
    if not folder.is_dir():
        raise Refused(f"{path} is no folder")
    try:
        entries = list(itertools.islice(walk(folder, depth), MAX_ENTRIES + 1))
    except PermissionError as error:
        raise Refused(f"{path} cannot be read") from error
    lines = [f"{entry.relative_to(folder)}{suffix(entry)}" for entry in entries[:MAX_ENTRIES]]
    if len(entries) > MAX_ENTRIES:
        lines.append(f"[only the first {MAX_ENTRIES} are shown]")
    return {"text": "\n".join(lines) or "(empty)"}


def walk(folder: Path, depth: int) -> Any:
    for entry in sorted(folder.iterdir()):
        yield entry
        if depth > 1 and entry.is_dir() and not entry.is_symlink() and os.access(entry, os.R_OK | os.X_OK):
            yield from walk(entry, depth - 1)


def suffix(entry: Path) -> str:
    if entry.is_symlink():
        return f" -> {os.readlink(entry)}"
    return "/" if entry.is_dir() else f"  {entry.lstat().st_size} bytes"


def read_file(path: str, first_line: int, last_line: int | None) -> dict[str, Any]:
    lines = read(path).splitlines()
    last = min(len(lines), last_line or len(lines), first_line + MAX_LINES - 1)
    if first_line > max(1, len(lines)):
        raise Refused(f"{path} has {len(lines)} lines")
    shown = [f"{number}\t{lines[number - 1]}" for number in range(first_line, last + 1)]
    if last < len(lines):
        shown.append(f"[lines {last + 1} to {len(lines)} are not shown]")
    return {"text": "\n".join(shown) or "(empty file)"}


def create_file(path: str, content: str, overwrite: bool) -> dict[str, Any]:
    file = Path(path)
    before = None
    if file.exists():
        if not overwrite:
            raise Refused(f"{path} exists already: change it with edit_file, or replace it with overwrite=true")
        before = read(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, content)
    return {"text": f"{path} was written: {len(content.splitlines())} lines.", "before": before}


def edit_file(path: str, old: str, new: str) -> dict[str, Any]:
    before = read(path)
    if not old:
        raise Refused("old is empty: give the text to replace")
    found = before.count(old)
    if found != 1:
        where = [before.count("\n", 0, match.start()) + 1 for match in re.finditer(re.escape(old), before)][:10]
        at = f", in lines {', '.join(map(str, where))}; give more of its surroundings" if found else ""
        raise Refused(f"old occurs {found} times in {path}{at}, and must occur once")
    at = before.index(old)
    after = before[:at] + new + before[at + len(old) :]
    write(Path(path), after)
    line = before.count("\n", 0, at) + 1
    lines = after.splitlines()
    shown = range(max(1, line - 2), min(len(lines), line + new.count("\n") + 2) + 1)
    text = "\n".join(f"{number}\t{lines[number - 1][:MAX_LINE]}" for number in shown)
    return {"text": f"{path} was changed:\n{text}", "before": before}


def grep(pattern: str, path: str) -> dict[str, Any]:
    try:
        wanted = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise Refused(f"{pattern!r} is no regular expression: {error}") from error
    root = Path(path)
    if not root.exists():
        raise Refused(f"there is no {path}")
    lines = list(itertools.islice(matches(wanted, root), MAX_MATCHES + 1))
    if len(lines) > MAX_MATCHES:
        lines[MAX_MATCHES:] = [f"[only the first {MAX_MATCHES} are shown]"]
    return {"text": "\n".join(lines) or "(no match)"}


def matches(wanted: re.Pattern[str], root: Path) -> Any:
    files = [root] if root.is_file() else (file for file in sorted(root.rglob("*")) if file.is_file())
    for file in files:
        try:
            text = read(str(file))
        except (Refused, OSError):
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if wanted.search(line):
                yield f"{file}:{number}:{line[:MAX_LINE]}"


def restore(path: str, before: str | None) -> dict[str, Any]:
    if before is None:
        Path(path).unlink(missing_ok=True)
        return {"text": f"{path} was removed again."}
    write(Path(path), before)
    return {"text": f"{path} is again what it was before the last change."}


def read(path: str) -> str:
    file = Path(path)
    if file.is_dir():
        raise Refused(f"{path} is a folder")
    if not file.is_file():
        raise Refused(f"there is no file {path}" if not file.exists() else f"{path} is no regular file")
    if file.stat().st_size > MAX_TEXT:
        raise Refused(f"{path} has {file.stat().st_size} bytes, at most {MAX_TEXT} can be read at once; use run_shell")
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not UTF-8 text") from error


def write(file: Path, text: str) -> None:
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TEXT:
        raise Refused(f"the file would have {len(data)} bytes, at most {MAX_TEXT} are allowed")
    file.write_bytes(data)


ACTIONS = {
    "list_files": list_files,
    "read_file": read_file,
    "create_file": create_file,
    "edit_file": edit_file,
    "grep": grep,
    "restore": restore,
}


def main() -> None:
    """Does the request on standard input."""
    request = json.load(sys.stdin)
    try:
        answer = ACTIONS[request.pop("action")](**request)
    except Refused as error:
        answer = {"error": str(error)}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        answer = {"error": f"{request.get('path')}: {reason}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
