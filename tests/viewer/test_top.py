"""`agentfly top` over states that a publisher has written: running, ended, killed, silent, hostile."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from agentfly_lib.errors import ShardError, UserError
from agentfly_lib.viewer.live import LiveDisplay
from agentfly_lib.viewer.state import (
    EngineView,
    PoolView,
    RankView,
    RunState,
    StageView,
    read_state,
    state_file,
    write_state,
)
from agentfly_lib.viewer.top import is_running, newest_run, render_state, state_of, verdict, watch_run

REPOSITORY = Path(__file__).resolve().parents[2]


def a_state(**changes: object) -> RunState:
    now = time.time()
    values = {
        "written": now,
        "began": now - 125,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "run": "demo",
        "steps_done": 3,
        "steps": 30,
        "generating": 17,
        "using_tools": 4,
        "stages": (
            StageView(name="steps", completed=3, total=30),
            StageView(
                name="collect-000003",
                completed=40,
                total=64,
                note="2 failed",
                seconds=12.4,
                facts={"chains": 64, "chains_done": 40, "failures": 2, "retries": 5, "groups": 8, "groups_done": 3},
            ),
        ),
        "engines": (
            EngineView(name="engine-0", policy_version=3, in_flight=17, tokens_per_second=812.4, rss_mib=2300.0),
            EngineView(name="engine-1", error="does not answer"),
        ),
        "pools": (PoolView(name="ProcessSpec", alive=6, in_use=4, waiting=9, made=7, died=1, failed=0),),
        "ranks": (RankView(pid=4711, doing="update", rss_mib=900.0, gpu_mib=70 * 1024.0),),
        "rows": (("2", {"train/reward/mean": 0.625}),),
        "warnings": ("12:00:00 trajectory 7 is tried again",),
    }
    return RunState.model_validate(values | changes)


def shown(state: RunState) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=140).print(render_state(state))
    return [" ".join(line.split()) for line in output.getvalue().splitlines()]


def test_everything_is_shown() -> None:
    lines = shown(a_state())
    assert lines[0].startswith("demo running for 2 min, process ")
    assert lines[0].endswith("step 3 of 30")
    assert any(line.startswith("collect-000003") and line.endswith("40/64 12 s 2 failed") for line in lines)
    assert "collect-000003 40/64 17 4 24 2 5 3/8" in lines
    assert "engine-0 3 17 812 2.2 GiB" in lines
    assert "engine-1 0 0 MiB does not answer" in lines
    assert "ProcessSpec 6 4 9 7 1 0" in lines
    assert "0 4711 900 MiB 70.0 GiB update" in lines
    assert any("reward" in line for line in lines)
    assert any("2" in line and "0.625" in line for line in lines)
    assert "12:00:00 trajectory 7 is tried again" in lines


def test_an_ended_run_shows_how_it_ended_and_no_engines() -> None:
    for status, words in (("FINISHED", "has finished"), ("FAILED", "has failed"), ("KILLED", "was cancelled")):
        state = a_state(status=status, written=time.time() - 7300)
        assert not is_running(state)
        assert verdict(state) == f"not running: it {words}, 2.0 h ago"
        assert not any("engine" in line for line in shown(state))


def test_a_killed_process_and_a_silent_one() -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    assert verdict(a_state(pid=dead.pid)) == f"not running: process {dead.pid} is gone; start the run again to go on"
    silent = a_state(written=time.time() - 3600)
    assert not is_running(silent)
    assert (
        verdict(silent)
        == f"silent for 60 min: process {os.getpid()} on {socket.gethostname()} hangs, or its machine does"
    )
    assert is_running(a_state(pid=dead.pid, host="another-machine"))


def test_what_is_hostile_stays_text() -> None:
    state = a_state(warnings=("\x1b[2J\x1b]0;title\x07 [red]gone[/red]",), run="x\x1b[31m")
    text = "\n".join(shown(state))
    assert "\x1b" not in text
    assert "[red]gone[/red]" in text


def test_a_state_is_replaced_whole(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    for step in range(3):
        write_state(tmp_path, a_state(steps_done=step))
    assert state_of(tmp_path).steps_done == 2
    assert [path.name for path in tmp_path.iterdir()] == ["live.json"]
    state_file(tmp_path).write_text("{")
    with pytest.raises(ShardError, match=r"live\.json cannot be read"):
        read_state(tmp_path)


def test_the_run_that_spoke_last(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run in"):
        newest_run(tmp_path)
    for number, name in enumerate(("b", "c", "a")):
        (tmp_path / name).mkdir()
        write_state(tmp_path / name, a_state(run=name))
        os.utime(state_file(tmp_path / name), (number, number))
    assert newest_run(tmp_path) == tmp_path / "a"


def test_the_display_tells_what_is_in_progress() -> None:
    display = LiveDisplay("demo", quiet=True)
    with display.stage("steps", total=3), display.stage("collect-000001", total=64) as bar:
        bar.update(completed=8, total=64, note="1 failed", facts={"chains": 64.0})
        bar.update(completed=9, total=64)
        display.row("0", {"train/reward/mean": 0.5})
        assert [(s.name, s.completed, s.total, s.note, s.facts) for s in display.stages] == [
            ("steps", 0, 3, "", {}),
            ("collect-000001", 9, 64, "", {"chains": 64.0}),
        ]
    assert display.stages == ()
    assert display.rows == (("0", {"train/reward/mean": 0.5}),)


class TestWatch:
    def test_it_follows_until_the_run_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_state(tmp_path, a_state())
        looks: list[float] = []

        def sleep(_: float) -> None:
            looks.append(time.time())
            write_state(tmp_path, a_state(steps_done=4, status="FINISHED" if len(looks) == 3 else "RUNNING"))

        monkeypatch.setattr("agentfly_lib.viewer.top.time.sleep", sleep)
        output = io.StringIO()
        console = Console(file=output, width=140, force_terminal=True, color_system=None)
        assert watch_run(tmp_path, once=False, console=console) is False
        assert len(looks) == 3
        assert "step 4 of 30" in output.getvalue()
        assert "it has finished" in output.getvalue()

    def test_one_look(self, tmp_path: Path) -> None:
        write_state(tmp_path, a_state())
        output = io.StringIO()
        assert watch_run(tmp_path, once=True, console=Console(file=output, width=140)) is True
        assert output.getvalue().count("step 3 of 30") == 1


@pytest.fixture
def top(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.toml").touch()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentfly_lib", "top", *arguments]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)

    return run


class TestCommand:
    def test_json_of_a_running_and_of_an_ended_run(self, top, tmp_path: Path) -> None:
        for status, code in (("RUNNING", 0), ("FINISHED", 1)):
            write_state(tmp_path / "demo", a_state(status=status))
            done = top(str(tmp_path / "demo"), "--json")
            assert done.returncode == code, done.stderr
            told = json.loads(done.stdout)
            assert told["running"] is (code == 0)
            assert told["engines"][0]["tokens_per_second"] == 812.4

    def test_a_run_that_never_spoke(self, top, tmp_path: Path) -> None:
        done = top(str(tmp_path / "demo"))
        assert done.returncode == 2
        assert "has no recorded state" in done.stderr
        done = top("--root", str(tmp_path))
        assert done.returncode == 2
        assert f"no run in {tmp_path} has recorded its state" in done.stderr
