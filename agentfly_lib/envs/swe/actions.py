"""What can be done in a repository: a shell, file tools, `submit`. Each writes the object of JSON that `step` takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError, validate_call

__all__ = ["ACTIONS", "NoAction", "read_action"]

_FORMAT = 'an action is an object of JSON such as {"name": "run_shell", "arguments": {"command": "ls"}}'

Command = Annotated[str, Field(max_length=30_000)]  # one argument of a program has 128 KiB at most
Line = Annotated[int, Field(ge=1)]


class NoAction(Exception):
    """Why an action is none, for the model."""


def run_shell(command: Command) -> str:
    """Run a shell command in the repository. Files stay for the next call; variables and the folder do not. No network.

    Args:
        command: What to run.
    """
    return _write("run_shell", command=command)


def list_files(path: str = ".", depth: Annotated[int, Field(ge=1, le=10)] = 2) -> str:
    """List files and folders.

    Args:
        path: A folder.
        depth: How many levels down.
    """
    return _write("list_files", path=path, depth=depth)


def read_file(path: str, first_line: Line = 1, last_line: Line | None = None) -> str:
    """Read a text file. Every line is shown with its number and a tab.

    Args:
        path: The file.
        first_line: Where to begin.
        last_line: Where to end; the end of the file if not given.
    """
    return _write("read_file", path=path, first_line=first_line, last_line=last_line)


def create_file(path: str, content: str, overwrite: bool = False) -> str:
    """Write a text file.

    Args:
        path: The file; folders that are missing are made.
        content: All of its text.
        overwrite: Replace a file that exists.
    """
    return _write("create_file", path=path, content=content, overwrite=overwrite)


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a passage of a text file.

    Args:
        path: The file.
        old: The passage, exactly as it stands there, without line numbers. It must occur once.
        new: What comes in its place.
    """
    return _write("edit_file", path=path, old=old, new=new)


def grep(pattern: str, path: str = ".") -> str:
    """Find lines in files.

    Args:
        pattern: A regular expression of Python.
        path: A file, or a folder to search with all that is in it.
    """
    return _write("grep", pattern=pattern, path=path)


def submit() -> str:
    """The work is done: have it judged. This ends the task."""
    return _write("submit")


ACTIONS = (run_shell, list_files, read_file, create_file, edit_file, grep, submit)

_CHECKED = {action.__name__: validate_call(action) for action in ACTIONS}


def read_action(text: str) -> tuple[str, Mapping[str, Any]]:
    """Name and checked arguments. Raises `NoAction`."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoAction(f"This is no JSON; {_FORMAT}.") from error
    name = call.get("name") if isinstance(call, dict) else None
    arguments = call.get("arguments", {}) if isinstance(call, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise NoAction(f"This is no call; {_FORMAT}.")
    if name not in _CHECKED:
        raise NoAction(f"There is no action {name[:64]!r}; the actions are {', '.join(_CHECKED)}.")
    try:
        return name, json.loads(_CHECKED[name](**arguments))["arguments"]
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False)]
        raise NoAction(f"{name} was not done: {'; '.join(faults[:3])[:300]}.") from error


def _write(name: str, /, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})
