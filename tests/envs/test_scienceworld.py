"""ScienceWorld in its real simulator: its own solution scores 100, a random policy does not, no JVM stays behind."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentfly_lib.envs.registry import read_settings
from agentfly_lib.envs.scienceworld import KIND, ScienceWorld, ScienceWorldSettings, splits
from agentfly_lib.envs.text_actions import MAX_LISTED, do, list_actions
from agentfly_lib.errors import ConfigError, EnvironmentFailure
from tests.envs.solutions import scienceworld_solution

pytest.importorskip("scienceworld", reason="scienceworld is not installed: make envs")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java runtime on the PATH")
pytestmark = needs_java

BOIL = {"task": "boil", "variation": 0}
GONE_SECONDS = 120.0


class Recorder:
    """The simulator's interface, and what was asked of it."""

    def __init__(self, server: Any) -> None:
        self.server, self.asked = server, []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.server, name)


@pytest.fixture(scope="module")
def world() -> Iterator[ScienceWorld]:
    with closing(ScienceWorld()) as made:
        yield made


def gone(process: int) -> bool:
    """The process ends within the limit; waits for the event itself."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], GONE_SECONDS)[0])
    finally:
        os.close(descriptor)


def test_the_simulators_own_solution_scores_100(world: ScienceWorld) -> None:
    solution = scienceworld_solution(world, BOIL)
    assert len(solution) == 39
    world.reset(BOIL)
    results = [world.step(action) for action in solution]
    last = next(index for index, result in enumerate(results) if result.done)
    assert last > 30
    assert sum(result.reward for result in results[: last + 1]) == pytest.approx(1.0)
    assert results[last].info == {"score": 100, "steps": last + 1}


def test_another_simulator_tells_of_the_same_house_in_the_same_words(world: ScienceWorld) -> None:
    problems = [{"task": "boil", "variation": number} for number in (2, 5, 7)]
    told = [world.reset(problem) for problem in problems]
    with closing(ScienceWorld()) as other:
        assert [other.reset(problem) for problem in reversed(problems)] == told[::-1]


def test_a_random_policy_does_not(world: ScienceWorld) -> None:
    chosen, total = random.Random(0), 0.0
    world.reset(BOIL)
    for _ in range(60):
        listed = world.step("list actions door").observation.splitlines()[1:-1]
        result = world.step(chosen.choice([*listed, "look around", "go to kitchen", "pick up thermometer"]))
        total += result.reward
        if result.done:
            break
    assert total < 0.5


def test_the_episode_is_the_problems(world: ScienceWorld) -> None:
    first = world.reset(BOIL)
    assert first.startswith("Your task is to boil water.")
    assert "This room is called the hallway." in first
    world.step("open door to kitchen")
    assert "(that is open)" in world.step("look around").observation
    assert world.reset(BOIL) == first
    other = world.reset({"task": "find-plant", "variation": 3})
    assert "plant" in other
    assert other != first


def test_the_wrong_focus_ends_the_episode(world: ScienceWorld) -> None:
    world.reset(BOIL)
    result = world.step("focus on picture")
    assert (result.done, result.reward, result.info["score"]) == (True, 0.0, -100)


def test_actions_are_listed_only_when_asked_for(world: ScienceWorld) -> None:
    world.reset(BOIL)
    recorder = Recorder(world._simulator.server)
    world._simulator.server = recorder
    try:
        world.step("look around")
        assert recorder.asked == ["step", "getScore", "getCompleted"]
        listed = world.step(list_actions())
        assert recorder.asked[3:] == ["getValidActionObjectCombinations"]
    finally:
        world._simulator.server = recorder.server
    lines = listed.observation.splitlines()
    assert len(lines) == 1 + MAX_LISTED + 1
    assert lines[0] == "Possible actions:"
    assert "more; name what they are to contain" in lines[-1]
    few = world.step(list_actions("Open DOOR to kitchen"))
    assert few.observation == "Possible actions:\nopen door to kitchen"
    assert world.step(list_actions("unicorn")).observation.startswith("There is no action with 'unicorn' among the ")
    assert world.step("look around").info["steps"] == 2


def test_whatever_a_model_writes_is_answered(world: ScienceWorld) -> None:
    world.reset(BOIL)
    for action in ("", "x" * 1_000_000, "\x00\x07\r\n", "日本語 ☃", "go to nowhere", "0", "list"):
        result = world.step(action)
        assert result.error is not None
        assert result.observation
        assert (result.reward, result.done) == (0.0, False)
    assert world.step("look around").error is None


def test_settings_reach_the_simulator() -> None:
    with closing(ScienceWorld(simplifications=("easy",), max_steps=2, failed_return=-1.0)) as world:
        first = world.reset(BOIL)
        assert "(that is open)" in first
        assert "(that is closed)" not in first
        assert world.step("teleport to kitchen").error is None
        assert world.step("look around").done
        world.reset(BOIL)
        assert world.step("focus on picture").reward == -1.0


def test_a_dead_jvm_fails_the_episode_and_is_replaced(world: ScienceWorld) -> None:
    first = world.reset(BOIL)
    process = world._simulator.process
    process.kill()
    process.wait()
    with pytest.raises(EnvironmentFailure, match="JVM has died"):
        world.step("look around")
    assert world.reset(BOIL) == first
    assert world._simulator.process.pid != process.pid


def test_no_jvm_stays_behind_when_its_parent_is_killed() -> None:
    program = (
        "import time\nfrom agentfly_lib.envs.scienceworld import Simulator\n"
        "simulator = Simulator(128)\nprint(simulator.process.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        jvm = int(parent.stdout.readline())
        assert os.path.exists(f"/proc/{jvm}")
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert gone(jvm)


def test_closing_ends_the_jvm_and_twice_is_once() -> None:
    world = ScienceWorld(heap_mib=128)
    process = world._simulator.process
    world.close()
    assert process.poll() is not None
    world.close()
    with pytest.raises(RuntimeError, match="closed"):
        world.step("look around")


def test_the_official_variations_and_splits(world: ScienceWorld) -> None:
    """The counts of the paper's table of tasks, and the halves and quarters of its splits."""
    found = splits(world._simulator)
    assert len(found) == 30
    counts = {task: [len(parts[part]) for part in ("train", "dev", "test")] for task, parts in found.items()}
    assert [sum(column) for column in zip(*counts.values(), strict=True)] == [3592, 1796, 1819]
    assert sum(map(sum, counts.values())) == 7207
    assert counts["boil"] == [14, 7, 9]
    assert counts["inclined-plane-friction-named-surfaces"] == [692, 346, 348]
    for parts in found.values():
        assert sorted(parts["train"] + parts["dev"] + parts["test"]) == list(range(sum(map(len, parts.values()))))


def test_problems_take_turns_among_the_tasks() -> None:
    settings = ScienceWorldSettings(tasks=("boil", "identify-life-stages-2"), eval_split="test")
    train = [(row["task"], row["variation"]) for row in KIND.problems(settings, "train")]
    assert train[:4] == [("boil", 0), ("identify-life-stages-2", 0), ("boil", 1), ("identify-life-stages-2", 1)]
    assert len(train) == 14 + 4
    held_out = list(KIND.problems(settings, "eval"))
    assert len(held_out) == 9 + 4
    assert {row["id"] for row in held_out}.isdisjoint(f"{task}-{variation}" for task, variation in train)


def test_what_cannot_run_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    KIND.check(ScienceWorldSettings())
    with pytest.raises(ConfigError, match="no task 'boli'; there are: boil, "):
        KIND.check(ScienceWorldSettings(tasks=("boli",)))
    with pytest.raises(ConfigError, match="simplifications"):
        read_settings(KIND, {"simplifications": ["flying"]}, where="settings")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="openjdk-17-jre-headless"):
        KIND.check(ScienceWorldSettings())


def test_the_agents_tools() -> None:
    assert KIND.actions(ScienceWorldSettings()) == (do, list_actions)
    assert KIND.actions(ScienceWorldSettings(list_actions=False)) == (do,)
