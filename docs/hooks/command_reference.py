"""The command line's reference as Markdown, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import typer

from agentfly_lib.cli import app

__all__ = ["command_reference", "commands"]

INTRODUCTION = """# Command line

`agentfly --help` and `agentfly COMMAND --help` say the same in the terminal. A command exits with 0 when all is well,
1 if it ran and something was wrong, 2 for what you can mend yourself (a wrong key, a missing file), 130 after Ctrl-C,
and 143 after SIGTERM. `agentfly --install-completion` teaches your shell the commands, their options, recipes and keys.
"""


def command_reference() -> str:
    """The page."""
    return INTRODUCTION + "\n" + "\n\n".join(text for name, command in commands() for text in _section(name, command))


def commands() -> list[tuple[str, Any]]:
    """Every command that does something, with its whole name, as `agentfly --help` orders them."""
    return list(_walk("agentfly", typer.main.get_command(app)))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for below, each in command.commands.items():
        yield from _walk(f"{name} {below}", each)


def _section(name: str, command: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    yield f"## {name} {{ #{name.replace(' ', '-')} }}"
    yield cleandoc(command.help or "")
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```"
    rows = [_row(parameter, context) for parameter in command.params if not parameter.hidden]
    if rows:
        yield "\n".join(["| | default | |", "| --- | --- | --- |", *rows])


def _row(parameter: Any, context: typer.Context) -> str:
    names = [" / ".join(group) for group in (parameter.opts, parameter.secondary_opts) if group]
    if parameter.param_type_name == "argument":
        names = parameter.get_usage_pieces(context)
    default = parameter.default
    shown = "" if default is None or callable(default) or parameter.required else f"`{default}`"
    if isinstance(default, bool):
        chosen = parameter.opts if default else parameter.secondary_opts
        shown = f"`{chosen[0]}`" if chosen else ""
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    return f"| {' '.join(f'`{name}`' for name in names)} | {shown} | {text} |"
