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
    "async_pipeline",
    "weight_sync",
    "scaling",
    "cli",
    "demo",
)
_SECONDS = 3600


def table() -> str:
    """Markdown: every finding that has a bar, of the newest result of each benchmark."""
    lines = ["| benchmark | what | value | bar | |", "| --- | --- | --- | --- | --- |"]
    for name in NAMES:
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        findings = [Finding(**values) for values in json.loads(path.read_text())["findings"]]
        lines += [
            f"| `{name}` | {finding.what} | {finding.value:.3g} {finding.unit} | {finding.limit} | {finding.verdict} |"
            for finding in findings
            if finding.limit
        ]
    return "\n".join(lines)


def _run(name: str) -> bool:
    print(f"benchmarks.{name}", flush=True)
    variables = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    return subprocess.run(command, check=False, env=variables, timeout=_SECONDS).returncode == 0


if __name__ == "__main__":
    asked = sys.argv[1:]
    if unknown := set(asked) - {*NAMES, "--table"}:
        sys.exit(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    results = [] if asked == ["--table"] else [_run(name) for name in asked or NAMES]
    print(table())
    sys.exit(0 if all(results) else 1)
