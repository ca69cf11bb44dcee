"""MiniWoB: small web pages that ask for something, in a real Chromium, seen as pictures or as text.

The pages are those of the package `miniwob`, which itself is not imported: it would want selenium and a driver. Each
environment has a browser without network and without anything of the machine, driven over the DevTools protocol through
a pipe. See `docs/environments/miniwob.md`.
"""

from agentfly_lib.envs.environment import EnvironmentKind
from agentfly_lib.envs.miniwob.episode import MiniWob
from agentfly_lib.envs.miniwob.tasks import MiniWobSettings, actions, check, problems

__all__ = ["KIND", "MiniWob", "MiniWobSettings"]

PROMPT = """\
You work on a small web page: do what it asks for, with mouse and keyboard. (0, 0) is the top left corner of the \
screen. After each action you are shown the page as it is then. The page ends by itself when the task is done, right \
or wrong: look before you press the last button."""

KIND = EnvironmentKind(
    name="miniwob",
    make=MiniWob,
    settings=MiniWobSettings,
    actions=actions,
    problems=problems,
    prompt=PROMPT,
    check=check,
    start_seconds=120.0,
    step_seconds=60.0,
    packages=("miniwob",),
)
