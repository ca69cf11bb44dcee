"""Runs every benchmark, one after the other; exits 1 if a bar is missed."""

from __future__ import annotations

import sys

from benchmarks import demo, orchestration, overhead

if __name__ == "__main__":
    results = [benchmark.main() for benchmark in (orchestration, overhead, demo)]
    sys.exit(0 if all(results) else 1)
