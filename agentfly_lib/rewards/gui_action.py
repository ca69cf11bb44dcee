"""One step on a screen against the right one: the kind of action, the point that is hit, the text.

    columns   action   name of the right action: "click", "type", ...
              box      where it is to be, [left, top, right, bottom] in pixels, or a list of such boxes; may be missing
              text     what is to be typed, pressed or answered; may be missing

The reward is the mean of what the columns ask for, each from 0 to 1: whether the kind is right, whether the point lies
in a box, and the token F1 of the texts. If the kind is wrong, or the reply holds no action that can be read, all of
them are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentfly_lib.chat.calls import ToolCall
from agentfly_lib.chat.gui_action import GuiActionParser, Screen
from agentfly_lib.envs.search import scoring
from agentfly_lib.errors import RewardError
from agentfly_lib.rewards.factory import reward_factory
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.types import Problem, Trajectory

__all__ = ["gui_action", "in_a_box"]

_TEXTS = ("text", "keys", "answer", "direction")
_NO_LIMIT = 10**6


@reward_factory
def gui_action(*, screen_width: int = _NO_LIMIT, screen_height: int = _NO_LIMIT) -> Reward:
    """Of the first turn of a trajectory; parts `kind`, `hit` and `text`, as far as the problem's columns ask for them.

    screen_width, screen_height: a point beyond them is no action; unset, any will do.
    """
    parser = GuiActionParser(Screen(width=screen_width, height=screen_height))

    def judged(trajectory: Trajectory, problem: Problem) -> Mapping[str, float] | None:
        wanted = problem.columns.get("action")
        if not isinstance(wanted, str):
            return None
        said = next((turn.message for turn in _sampled(trajectory)), None)
        calls = parser.parse(str((said or {}).get("content") or "")).calls
        done = calls[0] if calls and isinstance(calls[0], ToolCall) else None
        right = done is not None and done.name == wanted
        arguments = done.arguments if done is not None and right else {}
        parts = {"kind": float(right)}
        if problem.columns.get("box") is not None:
            parts["hit"] = float(in_a_box(arguments, problem.columns["box"]))
        if problem.columns.get("text") is not None:
            given = next((str(arguments[name]) for name in _TEXTS if name in arguments), None)
            parts["text"] = 0.0 if given is None else scoring.token_f1(given, [str(problem.columns["text"])])
        return {"reward": sum(parts.values()) / len(parts), **parts}

    return Reward(name="gui_action", function=judged, inline=True)


def in_a_box(arguments: Mapping[str, Any], boxes: Any) -> bool:
    """Whether the point (`x`, `y`) of an action lies in one of the boxes, edges included. Raises `RewardError`."""
    x, y = arguments.get("x"), arguments.get("y")
    several = boxes if boxes and isinstance(boxes[0], Sequence) else [boxes]
    for box in several:
        if len(box) != 4 or not all(isinstance(edge, int | float) for edge in box):
            raise RewardError(f"the column 'box' holds {box!r}, expected [left, top, right, bottom] in pixels")
    if not isinstance(x, int | float) or not isinstance(y, int | float):
        return False
    return any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in several)


def _sampled(trajectory: Trajectory) -> Sequence[Any]:
    return [turn for segment in trajectory.segments for turn in segment.turns if turn.sampled]
