"""Resources with our labels, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

from agentfly_lib.resources.leftovers import Leftover
from agentfly_lib.visible import visible

__all__ = ["render_leftovers"]


def render_leftovers(found: Sequence[Leftover]) -> str:
    """A line for each, or that there is nothing."""
    if not found:
        return "nothing\n"
    table = Table("name", "kind", "run", "process", "state", "what", box=None, pad_edge=False)
    for leftover in found:
        owner = leftover.owner
        cells = (leftover.name, leftover.kind, owner.run, str(owner.pid), leftover.state, leftover.what)
        table.add_row(*map(visible, cells))
    out = StringIO()
    Console(file=out, width=200, no_color=True, markup=False).print(table)
    return out.getvalue()
