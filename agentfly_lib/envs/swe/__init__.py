"""SWE-style tasks: a repository, a problem in words, and tests that must pass when it is solved.

The policy works with a shell and file tools on a copy of the repository, in a sandbox or in a container. What it has
changed is put into another, fresh copy and judged there by the problem's tests, which it can neither see nor change.
See `docs/environments/swe.md`.
"""

from agentfly_lib.envs.environment import EnvironmentKind
from agentfly_lib.envs.swe.episode import Swe
from agentfly_lib.envs.swe.tasks import SweSettings, actions, check, problems

__all__ = ["KIND", "Swe", "SweSettings"]

PROMPT = """\
You mend software. The repository is in the current folder of every tool, and paths are relative to it. Find out what \
is wrong, change the code, and try it out. Hidden tests judge your work: what you change in existing tests, or in the \
configuration of the test runner, does not count. When you are done, call submit, once: it ends the task, and work \
that was not submitted is worth nothing."""

KIND = EnvironmentKind(
    name="swe",
    make=Swe,
    settings=SweSettings,
    actions=actions,
    problems=problems,
    prompt=PROMPT,
    first_observation=False,
    check=check,
    start_seconds=60.0,
    step_seconds=1200.0,
)
