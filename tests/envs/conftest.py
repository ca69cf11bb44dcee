"""A module of environments that misbehave, which processes of their own can import."""

from __future__ import annotations

import importlib
import sys
import textwrap
from typing import Any

import pytest

ODD = """
    import ctypes, os, re, subprocess, sys, threading
    from agentfly_lib.envs import Action, EnvironmentKind, EnvironmentSettings, StepResult


    class OddSettings(EnvironmentSettings):
        mood: str = "calm"
        start_code: int | None = None


    class Odd:
        def __init__(self, mood, start_code):
            print("making it")
            if start_code is not None:
                print("no such display", file=sys.stderr)
                sys.exit(start_code)
            if mood == "slow":
                threading.Event().wait()
            self.mood, self.steps = mood, []

        def reset(self, problem):
            print("printed while resetting")
            os.write(1, b"written to descriptor 1\\n")
            if problem.get("bad"):
                raise ValueError(f"there is no game {problem['bad']}")
            self.steps = []
            return f"{self.mood} {problem['word']}"

        def step(self, action):
            verb, _, rest = action.partition(" ")
            self.steps.append(action)
            if verb == "exit":
                sys.exit(7)
            if verb == "leave":
                os._exit(7)
            if verb == "crash":
                ctypes.string_at(0)
            if verb == "raise":
                raise ValueError("it broke")
            if verb == "hang":
                threading.Event().wait()
            if verb == "hang_in_c":
                re.match(r"(a+)+$", "a" * 60 + "b")  # exponential, holds the interpreter all the time
            if verb == "nan":
                return StepResult(observation="nan", reward=float("nan"))
            if verb == "number":
                return 7
            if verb == "bytes":
                return StepResult(observation=b"bytes")
            if verb == "set":
                return StepResult(observation="set", info={"seen": {1, 2}})
            if verb == "huge":
                return StepResult(observation="x" * 2000)
            if verb == "allocate":
                try:
                    block = bytearray(int(rest) << 20)
                except MemoryError:
                    return StepResult(observation="refused")
                return StepResult(observation=f"got {len(block)}")
            if verb == "read":
                return StepResult(observation=f"read {sys.stdin.read()!r}")
            if verb == "daemon":
                # A daemon in a session of its own, whose parent has ended.
                program = "import os, time; os.setsid(); os.fork() and os._exit(0); print(os.getpid(), flush=True); "
                sleeper = subprocess.Popen(
                    [sys.executable, "-c", program + "time.sleep(600)"], stdout=subprocess.PIPE, text=True
                )
                return StepResult(observation=sleeper.stdout.readline().strip())
            if verb == "picture":
                return StepResult(observation="seen", images=(b"\\x89PNG one", b"\\x89PNG two"))
            if verb == "wrong":
                return StepResult(observation="That cannot be done.", error="no such action")
            done = len(self.steps) == 3
            return StepResult(observation=f"{len(self.steps)}: {action}", reward=0.25, done=done, info={"n": [1]})

        def close(self):
            if self.mood == "clingy":
                threading.Event().wait()


    def do(what: str, times: int = 1) -> str:
        '''Do something.

        Args:
            what: A verb.
            times: How often.
        '''
        if times < 1:
            raise ValueError("times must be at least 1")
        return f"{what} {times}"


    JUMP = Action(
        name="jump",
        description="Jump somewhere.",
        parameters={
            "type": "object",
            "properties": {"to-where": {"type": "string"}},
            "required": ["to-where"],
            "additionalProperties": False,
        },
        write=lambda **given: "jump " + given["to-where"],
    )


    def problems(settings, split):
        words = {"train": ["ant", "bee", "cat", "dog", "elk"], "eval": ["fox", "gnu"]}[split]
        return ({"question": f"Play {settings.mood}.", "id": f"{split}-{word}", "word": word} for word in words)


    def kind(**changes):
        return EnvironmentKind(**{
            "name": "odd", "make": Odd, "settings": OddSettings, "actions": (do, JUMP), "problems": problems,
            "prompt": "You play.", "start_seconds": 60.0, "step_seconds": 60.0,
        } | changes)


    KIND = kind()
    IMPATIENT = kind(start_seconds=1.0, step_seconds=1.0)
    SMALL = kind(memory_mib=512)
    THREAD = kind(place="thread")
    BLIND = kind(first_observation=False)
"""


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module above."""
    folder = tmp_path_factory.mktemp("environments")
    (folder / "odd_environments.py").write_text(textwrap.dedent(ODD))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("odd_environments")
    sys.path.remove(str(folder))
    del sys.modules["odd_environments"]
