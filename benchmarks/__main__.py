"""Runs benchmarks, each in a process of its own, and prints their table for docs/performance.md.

python -m benchmarks                  all of them, about half an hour on two idle cores; exits 1 if a bar is missed
python -m benchmarks shards cli       some of them
python -m benchmarks --table [NAME]   only the table, of what was measured last
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.report import RESULTS, Finding

NAMES = (
    "scheduler",
    "rollout_vs_trl",
    "tool_overlap",
    "orchestration",
    "packing",
    "logprob_memory",
    "zero_overhead",
    "shards",
    "overhead",
    "durability",
    "async_pipeline",
    "weight_sync",
    "scaling",
    "cli",
    "demo",
)
_SECONDS = 3600


def table(names: Sequence[str] = NAMES) -> str:
    """Markdown: every finding that has a bar, of the newest result of each benchmark, with its day."""
    lines = ["| benchmark | what | value | bar | | measured |", "| --- | --- | --- | --- | --- | --- |"]
    for name in names:
        path = RESULTS / f"{name}.json"
        if not path.exists():
            lines.append(f"| `{name}` | no result | | | | |")
            continue
        result = json.loads(path.read_text())
        when = f"{result['date']}, load {result['machine']['load']:g}"
        findings = [Finding(**values) for values in result["findings"]]
        lines += [
            f"| `{name}` | {each.what} | {each.value:.3g} {each.unit} | {each.limit} | {each.verdict} | {when} |"
            for each in findings
            if each.limit
        ]
    return "\n".join(lines)


def _run(name: str, seconds: float = _SECONDS) -> bool:
    print(f"benchmarks.{name}", flush=True)
    (RESULTS / f"{name}.json").unlink(missing_ok=True)  # what fails now must not be told by what it once found
    variables = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    # In a session of its own, whose processes all end with it: a benchmark starts others.
    with subprocess.Popen(command, env=variables, start_new_session=True) as process:
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            print(f"benchmarks.{name} was not done within {seconds:g} s", flush=True)
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def main(asked: Sequence[str]) -> bool:
    """Runs what is asked for, all without names, and prints the table; True if every bar is met."""
    names = [each for each in asked if each != "--table"]
    if unknown := set(names) - set(NAMES):
        sys.exit(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    results = [] if "--table" in asked else [_run(name) for name in names or NAMES]
    print(table(names or NAMES))
    return all(results)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
