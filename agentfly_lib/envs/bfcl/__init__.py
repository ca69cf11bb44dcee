"""BFCL multi-turn: a user asks for one thing after another, to be done with the functions of small stateful systems
(a file system, a car, a travel agency, a trading account, ...). From the Berkeley Function Calling Leaderboard.

Systems, tasks and the check against the ground truth are those of the package `bfcl-eval`; calls reach the systems as
parsed JSON, and nothing that a model wrote is evaluated. See `docs/environments/bfcl.md`.
"""

from agentfly_lib.envs.bfcl.episode import Bfcl
from agentfly_lib.envs.bfcl.tasks import BfclSettings, actions, check, problems
from agentfly_lib.envs.environment import EnvironmentKind

__all__ = ["KIND", "Bfcl", "BfclSettings"]

PROMPT = """\
You help a user by calling functions. Do all that the current request asks for, and nothing else; use the results of \
earlier calls instead of guessing. When the request is done, or cannot be done with these functions, call done: it \
answers with the user's next request. Write no reply without a call before the conversation has ended."""

KIND = EnvironmentKind(
    name="bfcl",
    make=Bfcl,
    settings=BfclSettings,
    actions=actions,
    problems=problems,
    prompt=PROMPT,
    first_observation=False,
    check=check,
    memory_mib=2048,
    packages=("bfcl-eval", "mpmath"),
)
