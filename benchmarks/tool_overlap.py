"""What slow tools add to a rollout: the same work as `rollout_vs_trl`, with tools of one second and of none.

However many chains wait at the same time, the collection should get longer by little more than one chain's own tools.
"""

from __future__ import annotations

import sys

from benchmarks.peer_environments import NoPeerError
from benchmarks.report import Finding, show
from benchmarks.rollout_vs_trl import CALLS, TOOL_CALLS, best, in_turn, scripted_model

__all__ = ["main"]

SECONDS = 1.0


def main() -> bool:
    """Runs it; True if the bar is met. False without the peer."""
    try:
        with scripted_model() as model:
            quick = in_turn(model, [0.0] * TOOL_CALLS, repeats=1)
            slow = in_turn(model, [SECONDS] * TOOL_CALLS, repeats=1)
    except NoPeerError as error:
        print(error)
        return False
    alone = CALLS * SECONDS
    extra = {name: best(slow[name], "wall") - best(quick[name], "wall") for name in quick}
    findings = [
        Finding(what="extra wall / the tools of one chain, ours", value=extra["ours"] / alone, unit="x", bar=2),
        Finding(what="extra wall / the tools of one chain, TRL", value=extra["peer"] / alone, unit="x"),
        Finding(what="extra wall, ours", value=extra["ours"], unit="s"),
        Finding(what="extra wall, TRL", value=extra["peer"], unit="s"),
    ]
    return show("tool_overlap", findings, notes=f"{TOOL_CALLS} calls of {SECONDS:g} s, {CALLS} in a chain; trl 1.16.0")


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
