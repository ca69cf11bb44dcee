"""What went worst in a run: failures by kind and place, trajectories without a reward, and the lowest rewards.

Each with one example, the command that prints it, and its address in the viewer.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentfly_lib.loopback import VIEWER_PORT
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.viewer.web.catalog import Catalog, Filters, Row
from agentfly_lib.visible import visible

__all__ = ["VIEWER", "Trouble", "troubles", "troubles_markdown"]

VIEWER = f"http://127.0.0.1:{VIEWER_PORT}"
"""Where `agentfly view RUN` serves, unless told otherwise."""
_MOST_READ = 2000
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that went wrong, as often as it did."""

    what: str
    count: int
    message: str
    example: Row


def troubles(run: Path, *, most: int = 10) -> list[Trouble]:
    """The worst of a run's training steps: the most frequent failures first, then what could not be scored.

    Where nothing failed, the lowest rewards of the newest step. At most 2,000 failed trajectories are looked at, the
    newest ones.
    """
    catalog = Catalog(RunDirectory(run))
    found: dict[tuple[str, str], Trouble] = {}
    for outcome in ("failed", "dropped"):
        filters = Filters(outcome=outcome)
        rows = catalog.find(filters, limit=_MOST_READ).rows
        for row, (what, message) in zip(rows, _reasons(catalog, filters, outcome), strict=True):
            known = found.get((outcome, what))
            count = 1 if known is None else known.count + 1
            first = known or Trouble(what=what, count=0, message=message, example=row)
            found[outcome, what] = Trouble(what=what, count=count, message=first.message, example=first.example)
    ordered = sorted(found.values(), key=lambda each: -each.count)[:most]
    return ordered or _lowest(catalog, most // 2)


def troubles_markdown(run: Path, found: Sequence[Trouble]) -> str:
    """A table, and how to open what it names."""
    if not found:
        return "Nothing failed, and nothing was scored."
    place = shlex.quote(str(run))
    head = ["| what | how often | for example | |", "| --- | ---: | --- | --- |"]
    lines = [
        f"| {_cell(each.what)} | {each.count:,} | {_cell(each.message)} | "
        f"[{_cell(each.example.id)}]({VIEWER}/{each.example.address}/{each.example.chain}) |"
        for each in found
    ]
    first = found[0].example
    return "\n".join(
        [
            *head,
            *lines,
            "",
            "The links open while the viewer serves this run; without it, print a trajectory:",
            "",
            "```sh",
            f"agentfly view {place}",
            f"agentfly show {place} --step {first.step} --trajectory {shlex.quote(first.id)}",
            "```",
        ]
    )


def _reasons(catalog: Catalog, filters: Filters, outcome: str) -> list[tuple[str, str]]:
    """What happened to each row, in words, and its message."""
    if outcome == "dropped":
        return [("no reward", text or "") for text in catalog.texts(filters, "error", limit=_MOST_READ)]
    reasons = []
    for text in catalog.texts(filters, "failure", limit=_MOST_READ):
        failure = json.loads(text) if text else {}
        reasons.append((f"{failure.get('kind', '?')} at {failure.get('where', '?')}", str(failure.get("message", ""))))
    return reasons


def _lowest(catalog: Catalog, most: int) -> list[Trouble]:
    """The lowest reward of each of the worst problems."""
    steps = catalog.steps()
    rows = (
        catalog.find(Filters(step=steps[-1], sort="reward", order="ascending"), limit=_MOST_READ).rows if steps else ()
    )
    worst: dict[str, Row] = {}
    for row in rows:
        if row.reward is not None:
            worst.setdefault(row.problem_id, row)
    return [
        Trouble(what=f"reward {row.reward:g}, {row.stop}", count=1, message=row.question, example=row)
        for row in list(worst.values())[:most]
    ]


def _cell(text: str) -> str:
    """Text of a model or a tool inside a table of Markdown: one line, in which nothing is markup."""
    line = " ".join(visible(text).split())
    line = line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
    for mark, entity in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("|", "&#124;"),
        ("[", "&#91;"),
        ("]", "&#93;"),
        ("`", "&#96;"),
    ):
        line = line.replace(mark, entity)
    return line.replace("*", "&#42;").replace("_", "&#95;").replace("!", "&#33;")
