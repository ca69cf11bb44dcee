"""`agentfly doctor`: its checks as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentfly_lib.doctor import Check
from agentfly_lib.visible import visible

__all__ = ["render_checks"]

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def render_checks(checks: Sequence[Check], *, console: Console | None = None) -> bool:
    """Prints a table; says whether nothing failed."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        table.add_row(Text(check.level, _STYLES[check.level]), Text(check.what, "bold"), Text(visible(check.text)))
    failed = sum(check.level == "fail" for check in checks)
    warned = sum(check.level == "warn" for check in checks)
    (console or Console()).print(table)
    (console or Console()).print(f"{len(checks)} checks, {warned} warnings, {failed} failed", highlight=False)
    return not failed
