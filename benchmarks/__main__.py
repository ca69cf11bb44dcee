"""Runs benchmarks, each in a process of its own, and prints their table for docs/performance.md.

python -m benchmarks                  all of them, about half an hour on two idle cores; exits 1 if a bar is missed
python -m benchmarks shards cli       some of them
python -m benchmarks --table          only the table, of what was measured last
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

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


def table() -> str:
    """Markdown: every finding that has a bar, of the newest result of each benchmark, with its day."""
    lines = ["| benchmark | what | value | bar | | measured |", "| --- | --- | --- | --- | --- | --- |"]
    for name in NAMES:
        path = RESULTS / f"{name}.json"
        if not path.exists():
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


def _run(name: str) -> bool:
    print(f"benchmarks.{name}", flush=True)
    (RESULTS / f"{name}.json").unlink(missing_ok=True)  # what fails now must not be told by what it once found
    variables = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    try:
        return subprocess.run(command, check=False, env=variables, timeout=_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"benchmarks.{name} was not done within {_SECONDS} s", flush=True)
        return False


if __name__ == "__main__":
    asked = sys.argv[1:]
    if unknown := set(asked) - {*NAMES, "--table"}:
        sys.exit(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    results = [] if asked == ["--table"] else [_run(name) for name in asked or NAMES]
    print(table())
    sys.exit(0 if all(results) else 1)
