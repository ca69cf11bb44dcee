"""What the text worlds share: an action is one line of text, and what can be done is told when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from agentfly_lib.envs.environment import StepResult

__all__ = ["do", "list_actions", "one_line", "refuse_length", "tell_actions", "wanted_list"]

LIST = "list actions"
MAX_ACTION_CHARS = 190
"""No action of these worlds is nearly so long, and a Z-machine would cut it a little later."""
MAX_LISTED = 100


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
    told = f"An action has at most {MAX_ACTION_CHARS} characters; this one has {len(action)}."
    return StepResult(observation=told, error=told)


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
