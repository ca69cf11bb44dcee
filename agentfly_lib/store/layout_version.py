"""Which layout a run directory has: `layout.json`, written with the config; a directory without one has the first.

A program opens every layout up to its own, and refuses a newer one by the name of the release that wrote it, instead of
finding half of what it looks for.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PositiveInt

from agentfly_lib import __version__
from agentfly_lib.errors import UserError
from agentfly_lib.store.atomic import read_model, write_model
from agentfly_lib.store.layout import RunDirectory

__all__ = ["LAYOUT_VERSION", "LayoutVersion", "check_layout", "write_layout"]

LAYOUT_VERSION = 1
"""What this program writes. It grows when files move or mean something else; shards count by themselves."""


class LayoutVersion(BaseModel):
    """`layout.json`."""

    model_config = ConfigDict(frozen=True)  # a newer release may say more

    layout: PositiveInt
    program: str
    """Release that made the directory."""


def write_layout(run: RunDirectory) -> None:
    """Marks a directory that has just been made. Raises `ShardError` if the file system refuses."""
    write_model(run.layout_file, LayoutVersion(layout=LAYOUT_VERSION, program=__version__))


def check_layout(run: RunDirectory) -> int:
    """The layout of a run directory. Raises `UserError` if it is newer than this program, `ShardError` if damaged."""
    if not run.layout_file.exists():
        return 1
    found = read_model(run.layout_file, LayoutVersion, remedy="restore it from a copy")
    if found.layout > LAYOUT_VERSION:
        raise UserError(
            f"{run.path} has layout {found.layout} of run directories, written by release {found.program}; this is "
            f"release {__version__}, which knows layouts up to {LAYOUT_VERSION}: use the newer release"
        )
    return found.layout
