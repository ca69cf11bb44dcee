"""What the text worlds share: an action is one line of text, and what can be done is told when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentfly_lib.envs.environment import StepResult

__all__ = [
    "AdmissibleActions",
    "AdmissibleMode",
    "do",
    "list_actions",
    "one_line",
    "refuse_length",
    "tell_actions",
    "wanted_list",
]

AdmissibleMode = Literal["on_demand", "observation", "hidden"]
"""When the possible actions are told: by a tool of their own, after every observation, or never."""

LIST = "list actions"
MAX_ACTION_CHARS = 190
"""No action of these worlds is nearly so long, and a Z-machine would cut it a little later."""
MAX_LISTED = 100


@dataclass(frozen=True, slots=True)
class AdmissibleActions:
    """How an agent learns what it can do. `possible`, which may take long, is called only where its list is told."""

    mode: AdmissibleMode

    @property
    def tools(self) -> tuple[Callable[..., str], ...]:
        """The agent's tools."""
        return (do, list_actions) if self.mode == "on_demand" else (do,)

    def answer(self, action: str, possible: Callable[[], Sequence[str]]) -> StepResult | None:
        """The list, if that is what the action asks for, and may."""
        if self.mode == "hidden" or (containing := wanted_list(action)) is None:
            return None
        return StepResult(observation=tell_actions(possible(), containing))

    def below(self, observation: str, possible: Callable[[], Sequence[str]]) -> str:
        """The observation, and the list below it where it belongs there."""
        return f"{observation}\n\n{tell_actions(possible())}" if self.mode == "observation" else observation


def do(action: str) -> str:
    """Do something in the world.

    Args:
        action: One action as the world words it, such as "open door to kitchen".
    """
    return action


def list_actions(containing: str = "") -> str:
    """Tell which actions are possible now. This takes no time in the world.

    Args:
        containing: Tell only those with this text in them, such as the name of a thing.
    """
    return f"{LIST} {containing}".strip()


def one_line(text: str) -> str:
    """The text without control characters, and with single spaces. Interpreters written in C stumble over them."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def refuse_length(action: str) -> StepResult | None:
    """The answer to an action that is too long to be one."""
    if len(action) <= MAX_ACTION_CHARS:
        return None
    return StepResult.refused(f"An action has at most {MAX_ACTION_CHARS} characters; this one has {len(action)}.")


def wanted_list(action: str) -> str | None:
    """What the actions asked for are to contain, if `action` asks for a list."""
    if action == LIST or action.startswith(f"{LIST} "):
        return action.removeprefix(LIST).strip().lower()
    return None


def tell_actions(actions: Sequence[str], containing: str = "") -> str:
    """The possible actions, one a line, in the order of the alphabet, and how many were left out."""
    fitting = sorted({action for action in actions if containing in action.lower()})
    if not fitting:
        among = f" among the {len(set(actions))} possible ones" if actions else ""
        return f"There is no action with {containing!r}{among}." if containing else "There is no possible action."
    left = len(fitting) - MAX_LISTED
    more = [f"({left} more; name what they are to contain)"] if left > 0 else []
    return "\n".join(["Possible actions:", *fitting[:MAX_LISTED], *more])
