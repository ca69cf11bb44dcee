"""`python -m benchmarks` leaves no process behind, and its table hides no benchmark that found nothing."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import __main__ as runner


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    return tmp_path


def test_what_a_benchmark_has_started_ends_with_it(results, monkeypatch):
    program = results / "python"
    program.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {results}/pid\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert runner._run("any")
    pid, deadline = int((results / "pid").read_text()), time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it is still there"


def test_a_benchmark_without_a_result_stands_in_the_table(results):
    finding = {"what": "size", "value": 0.2, "unit": "x", "bar": 0.25, "floor": None}
    result = {"date": "2026-12-01", "machine": {"load": 0.5}, "findings": [finding]}
    (results / "shards.json").write_text(json.dumps(result))
    assert runner.table(["shards", "cli"]).splitlines()[2:] == [
        "| `shards` | size | 0.2 x | <= 0.25 | met | 2026-12-01, load 0.5 |",
        "| `cli` | no result | | | | |",
    ]


def test_the_table_of_one_benchmark_runs_nothing(capsys):
    assert runner.main(["--table", "cli"])
    assert capsys.readouterr().out.splitlines()[2:] == ["| `cli` | no result | | | | |"]
