"""Killing a writer at any instant loses at most what was not yet renamed, and counts nothing twice."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from agentfly_lib.store import RolloutStore, RunDirectory, ScoreStore, iter_groups, load_scored_groups, run_balance
from agentfly_lib.types import TrajectoryGroup

GROUPS = [f"0-{index}" for index in range(60)]

# Builds a group whose tokens say which group and chain they belong to.
BUILD = """
import numpy as np
from agentfly_lib.types import Problem, Segment, StopReason, Trajectory, TrajectoryGroup
def build(name):
    return TrajectoryGroup(
        id=name, problem=Problem(id=name, messages=({"role": "user", "content": name},)),
        trajectories=tuple(chain_of(name, c) for c in range(2)))
def chain_of(name, chain):
    segment = Segment(
        token_ids=np.full(300, 2 * int(name[2:]) + chain, dtype=np.int32), loss_mask=np.ones(300, bool),
        logprobs=np.zeros(300, np.float32), turns=())
    return Trajectory(id=f"{name}/{chain}", problem_id=name, group_id=name, chain=chain, stop=StopReason.FINISHED,
                      segments=(segment,))
"""
COLLECT = """
from agentfly_lib.store import RolloutStore
def collect(step, groups, acknowledge):
    store = RolloutStore.open(step, step=0, policy_version=0, group_ids=groups, chains=2)
    for name in store.missing:
        store.append([build(name)])
        acknowledge(name)
    store.finish()
"""


def build(name: str) -> TrajectoryGroup:
    """The group that the subprocesses write under that name."""
    exec(BUILD, namespace := {})
    return namespace["build"](name)


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def check_recovered(run: RunDirectory, groups: list[str], acknowledged: set[str]) -> RolloutStore:
    """What the dead writer acknowledged is there, once, unharmed, and nothing is half there."""
    store = RolloutStore.open(run.step(0), step=0, policy_version=0, group_ids=groups, chains=2)
    found = [group for _, part in iter_groups(run.step(0), store.manifest) for group in part]
    assert acknowledged <= {group.id for group in found}
    assert all(count == 1 for count in Counter(group.id for group in found).values())
    for group in found:
        values = [set(each.segments[0].token_ids.tolist()) for each in group.trajectories]
        assert values == [{2 * int(group.id[2:])}, {2 * int(group.id[2:]) + 1}]
    assert store.manifest.duplicates == 0
    assert not list(run.step(0).rollouts.glob("*.tmp"))
    return store


@pytest.mark.slow
def test_kill_9_at_random_instants_then_the_same_command_again(tmp_path):
    script = (
        BUILD
        + COLLECT
        + textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from agentfly_lib.store import RunDirectory, RunLock
        run = RunDirectory(Path(sys.argv[1]))
        with RunLock(run):
            print("started", flush=True)
            collect(run.step(0), {GROUPS!r}, lambda name: print(name, flush=True))
    """)
    )
    run, acknowledged, rng = RunDirectory(tmp_path), set[str](), random.Random(0)
    command = [sys.executable, "-c", script, str(tmp_path)]
    for attempt in range(5):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = [process.stdout.readline() for _ in range(rng.randint(2, 6))]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.uniform(0, 0.01))
        process.kill()
        process.wait()
        lines += process.stdout.readlines()
        process.stdout.close()
        acknowledged |= {line.strip() for line in lines if line.endswith("\n")} - {"started"}
        store = check_recovered(run, GROUPS, acknowledged)
        assert attempt > 0 or not store.complete
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    store = check_recovered(run, GROUPS, set(GROUPS))
    assert store.complete
    assert store.manifest.attempt > 0


@pytest.mark.slow
def test_dying_at_every_single_system_call(tmp_path):
    """A child that kills itself at its k-th write, flush or rename, for every k until it gets through."""
    groups = GROUPS[:3]
    script = (
        BUILD
        + COLLECT
        + textwrap.dedent(f"""
        import os, signal, sys
        from pathlib import Path
        from agentfly_lib.store import RunDirectory
        root = Path(sys.argv[1])

        def die_at(count):
            def wrap(real):
                def call(*arguments):
                    nonlocal count
                    count -= 1
                    if count == 0:
                        if real is real_write:
                            real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*arguments)
                return call
            real_write = os.write
            os.write, os.fsync, os.replace = wrap(os.write), wrap(os.fsync), wrap(os.replace)

        for k in range(1, 1000):
            run = RunDirectory(root / f"{{k:03d}}")
            run.path.mkdir(parents=True)
            acknowledged = (run.path / "acknowledged").open("w")
            child = os.fork()
            if child == 0:
                die_at(k)
                collect(run.step(0), {groups!r}, lambda name: print(name, file=acknowledged, flush=True))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL, status
        print(k)
    """)
    )
    result = run_script(script, tmp_path)
    assert result.returncode == 0, result.stderr
    instants = int(result.stdout)
    assert instants > 30
    for k in range(1, instants + 1):
        run = RunDirectory(tmp_path / f"{k:03d}")
        acknowledged = set((run.path / "acknowledged").read_text().split())
        store = check_recovered(run, groups, acknowledged)
        for name in store.missing:
            store.append([build(name)])
        store.finish()
        assert store.manifest.trajectories == 6
    assert acknowledged == set(groups)


@pytest.mark.slow
def test_scoring_that_is_killed_goes_on(tmp_path):
    """A child dies at its k-th rename while scoring; the next one scores only what is missing."""
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from agentfly_lib.store import RunDirectory, Score, ScoreStore, iter_groups, read_rollout_manifest
        from agentfly_lib.types import Outcome

        def die_at(count):
            real = os.replace
            def replace(*names):
                nonlocal count
                count -= 1
                if count == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                real(*names)
            os.replace = replace

        def score(step):
            rollouts = read_rollout_manifest(step)
            store = ScoreStore(step, "math")
            missing = {part.name for part in store.missing_parts(rollouts)}
            for part, groups in iter_groups(step, rollouts):
                if part.name in missing:
                    store.append(part.name, [Score(trajectory_id=t.id, outcome=Outcome.SCORED, reward=1.0)
                                             for g in groups for t in g.trajectories])
            store.finish(rollouts)

        for k in range(1, 7):
            for deadly in (k, 0):
                child = os.fork()
                if child == 0:
                    die_at(deadly)
                    score(RunDirectory(Path(sys.argv[1], str(k))).step(0))
                    os._exit(0)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """)
    runs = [RunDirectory(tmp_path / str(k)) for k in range(1, 7)]
    for run in runs:
        store = RolloutStore.open(run.step(0), step=0, policy_version=0, group_ids=GROUPS[:2], chains=2)
        for name in GROUPS[:2]:
            store.append([build(name)])
        store.finish()
    result = run_script(script, tmp_path)
    assert result.stdout.split() == ["-9", "0"] * 6, result.stderr
    for run in runs:
        (balance,) = run_balance(run)
        assert balance.balanced
        assert balance.scored == 4
        assert len(load_scored_groups(run.step(0))) == 2
        assert not list(run.step(0).scores.glob("*.tmp"))
        assert ScoreStore(run.step(0), "math").complete


def test_a_file_size_limit_of_the_process_is_a_clear_error(tmp_path):
    script = BUILD + textwrap.dedent("""
        import os, resource, sys
        from pathlib import Path
        from agentfly_lib.errors import ShardError
        from agentfly_lib.store import RolloutStore, StepDirectory
        step = StepDirectory(Path(sys.argv[1]))
        store = RolloutStore.open(step, step=0, policy_version=0, group_ids=["0-0", "0-1"], chains=2)
        store.append([build("0-0")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        try:
            store.append([build("0-1")])
        except ShardError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(sorted(os.listdir(step.rollouts)), sorted(store.done))
        store.append([build("0-1")])
        store.finish()
    """)
    result = run_script(script, tmp_path)
    assert result.returncode == 0, result.stderr
    message, listing = result.stdout.splitlines()
    assert "part-00001.arrow: the file is larger than this process may write" in message
    assert listing == "['MANIFEST.json', 'part-00000.arrow'] ['0-0']"
