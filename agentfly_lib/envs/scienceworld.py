"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540): experiments of elementary science in a simulated house.

30 tasks in 7,207 variations with the official train, dev and test splits, all inside the package `scienceworld`, whose
simulator runs in a JVM. We ask the simulator itself: the package's `step` lists every possible action each time, up to
some thousands, which costs ten times what the action does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, PositiveInt

from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.text_actions import AdmissibleActions, one_line, refuse_length
from agentfly_lib.errors import ConfigError, EnvironmentFailure

__all__ = ["KIND", "ScienceWorld", "ScienceWorldSettings", "Simulator"]

PROMPT = """\
You do experiments in a simulated house with several rooms and an outside. Find what the task needs, do the steps \
that it asks for in their order, and watch what happens. Actions are, for things THING and places PLACE: look around; \
look at THING; look in THING; go to PLACE; open THING; close THING; pick up THING; put down THING; move THING to \
THING; pour THING in THING; dunk THING in THING; mix THING; use THING on THING; activate THING; deactivate THING; \
connect THING to THING; disconnect THING; read THING; eat THING; flush THING; focus on THING; inventory; task; wait \
(ten moments); wait1 (one moment). To focus on a thing tells the judge that it is the one that the task speaks of: a \
wrong one ends the task."""

CLOSE_SECONDS = 5.0
UNKNOWN = "No known action matches that input."

Simplification = Literal[
    "easy", "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction"
]


class ScienceWorldSettings(EnvironmentSettings):
    """Which experiments, and how they are run."""

    tasks: tuple[str, ...] = ()
    """By the simulator's names, such as `boil`; all 30 if empty."""
    simplifications: tuple[Simplification, ...] = ()
    """The simulator's own; `easy` is all of them."""
    max_steps: PositiveInt = 100
    """The episode ends after so many actions; 100 is the package's default."""
    eval_split: Literal["dev", "test"] = "dev"
    """Which official split the held-out problems are."""
    failed_return: float = Field(default=0.0, ge=-1, le=0)
    """The return of an episode that a forbidden act ended, for which the simulator's score is -100."""
    list_actions: bool = True
    """Give the agent a tool that tells which actions are possible."""
    heap_mib: int = Field(default=256, ge=128)
    """Limit of the JVM's heap."""


class Simulator:
    """A JVM with the simulator. It reads a pipe from this process and ends when that closes, however we end."""

    def __init__(self, heap_mib: int) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from scienceworld.constants import BASEPATH, JAR_PATH

        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells each lost connection several times; we raise
        launched: Any = launch_gateway(
            classpath=JAR_PATH,
            cwd=BASEPATH,
            die_on_exit=True,
            enable_auth=True,  # other users of the machine can reach the port
            return_proc=True,
            javaopts=[
                f"-Xmx{heap_mib}m",
                "-XX:+UseSerialGC",
                "-XX:+ExitOnOutOfMemoryError",
                # It lists what is in a room by the hash codes of objects, which are random otherwise.
                "-XX:+UnlockExperimentalVMOptions",
                "-XX:hashCode=2",
            ],
        )
        port, token, process = launched
        self.process: subprocess.Popen[bytes] = process
        self._gateway: Any = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_field=True),
            java_process=self.process,
        )
        self.server: Any = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    @property
    def alive(self) -> bool:
        """The JVM runs."""
        return self.process.poll() is None

    def close(self) -> None:
        """Ends the JVM. A second call does nothing."""
        if self.alive:
            with contextlib.suppress(Exception):  # a JVM that does not answer is killed below
                self._gateway.shutdown()
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ScienceWorld:
    """One house. A problem names `task` and `variation`; rewards add up to the simulator's score / 100."""

    def __init__(self, **settings: Any) -> None:
        self._settings = ScienceWorldSettings(**settings)
        self._admissible = _admissible(self._settings)
        self._simplifications = ",".join(self._settings.simplifications)
        self._simulator: Simulator | None = Simulator(self._settings.heap_mib)
        self._steps, self._total = 0, 0.0

    def reset(self, problem: Mapping[str, Any]) -> str:
        """The task and what is seen around. A JVM that has died is replaced."""
        if self._simulator is None or not self._simulator.alive:
            self.close()
            self._simulator = Simulator(self._settings.heap_mib)
        server = self._simulator.server
        server.load(str(problem["task"]), int(problem["variation"]), self._simplifications, False)
        server.reset()
        self._steps, self._total = 0, 0.0
        return f"{str(server.getTaskDescription()).strip()}\n\n{str(server.step('look around')).strip()}"

    def step(self, action: str) -> StepResult:
        """Does one action; `info` has the simulator's `score`, from -100 to 100. Raises `EnvironmentFailure`."""
        action = one_line(action)
        if refused := refuse_length(action):
            return refused
        from py4j.protocol import Py4JError, Py4JNetworkError

        try:
            return self._act(self._server, action)
        except Py4JError as error:
            # A JVM that dies in the middle of an answer is told as one that refuses.
            if not isinstance(error, Py4JNetworkError) and self._simulator is not None and self._simulator.alive:
                raise
            raise EnvironmentFailure("ScienceWorld's JVM has died", where="environment:scienceworld") from error

    def _act(self, server: Any, action: str) -> StepResult:
        if listed := self._admissible.answer(action, lambda: list(server.getValidActionObjectCombinations())):
            return listed
        observation = str(server.step(action)).strip()
        score = round(100 * server.getScore())
        self._steps += 1
        total = score / 100 if score >= 0 else self._settings.failed_return
        reward, self._total = total - self._total, total
        return StepResult(
            observation=observation,
            reward=reward,
            done=bool(server.getCompleted()) or score < 0 or self._steps >= self._settings.max_steps,
            info={"score": score, "steps": self._steps},
            error=observation if observation.startswith(UNKNOWN) else None,
        )

    def close(self) -> None:
        """Ends the JVM."""
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None

    @property
    def _server(self) -> Any:
        if self._simulator is None:
            raise RuntimeError("ScienceWorld is closed")
        return self._simulator.server


def check(settings: ScienceWorldSettings) -> None:
    """Raises `ConfigError` if package or Java are missing, or a setting fits no task."""
    if importlib.util.find_spec("scienceworld") is None:
        raise ConfigError("the environment scienceworld needs the package of that name: `make envs`, or the extra envs")
    if shutil.which("java") is None:
        raise ConfigError(
            "the environment scienceworld needs a Java runtime, version 8 or later, such as the package "
            "openjdk-17-jre-headless of Debian and Ubuntu; there is no `java` on the PATH"
        )
    from scienceworld.constants import ID2TASK

    known = sorted(ID2TASK.values())
    if unknown := [task for task in settings.tasks if task not in known]:
        raise ConfigError(f"scienceworld has no task {unknown[0]!r}; there are: {', '.join(known)}")


def splits(simulator: Simulator, tasks: Sequence[str] = ()) -> dict[str, dict[str, list[int]]]:
    """Variations of each task by split (`train`, `dev`, `test`), as the simulator gives them."""
    server, found = simulator.server, {}
    for task in tasks or sorted(server.getTaskNames()):
        server.load(task, 0, "", False)
        found[task] = {
            "train": list(server.getVariationsTrain()),
            "dev": list(server.getVariationsDev()),
            "test": list(server.getVariationsTest()),
        }
    return found


def problems(settings: ScienceWorldSettings, split: Literal["train", "eval"]) -> Iterator[Mapping[str, Any]]:
    """Every variation of a split: the first of each task, the second of each, and so on."""
    with contextlib.closing(Simulator(settings.heap_mib)) as simulator:
        found = splits(simulator, settings.tasks)
    part = "train" if split == "train" else settings.eval_split
    columns = [[(task, variation) for variation in variations[part]] for task, variations in found.items()]
    for row in itertools.zip_longest(*columns):
        for task, variation in filter(None, row):
            yield {"id": f"{task}-{variation}", "question": "", "task": task, "variation": variation}


def actions(settings: ScienceWorldSettings) -> Sequence[Callable[..., str]]:
    """The agent's tools."""
    return _admissible(settings).tools


def _admissible(settings: ScienceWorldSettings) -> AdmissibleActions:
    return AdmissibleActions("on_demand" if settings.list_actions else "hidden")


KIND = EnvironmentKind(
    name="scienceworld",
    make=ScienceWorld,
    settings=ScienceWorldSettings,
    actions=actions,
    problems=problems,
    prompt=PROMPT,
    check=check,
    packages=("scienceworld",),
)
