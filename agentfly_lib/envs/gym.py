"""Any environment of Gymnasium as one of ours (`gymnasium` in a recipe). The other way: `envs.as_gymnasium`.

    [agent.environment]
    name = "gymnasium"
    settings = { id = "MiniGrid-Empty-5x5-v0", modules = ["minigrid"], actions = ["left", "right", "forward"] }

What an observation is as text is decided by its space: text as it is, an image as a picture, anything else as JSON.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt

from agentfly_lib.envs.environment import Action, EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.seeds import endless_seeds
from agentfly_lib.errors import ConfigError

__all__ = ["KIND", "GymnasiumEnvironment", "GymnasiumSettings", "as_text"]

_MAX_ACTION_CHARS = 100_000
_SHOWN_CHARS = 100
_SMALLEST_PICTURE = 16
"""Pixels; a smaller array of bytes is a grid of codes."""


class GymnasiumSettings(EnvironmentSettings):
    """Which environment, and how an agent is told of it."""

    id: str
    """As in `gymnasium.make`."""
    modules: tuple[str, ...] = ()
    """Imported first, because they register it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """More arguments of `gymnasium.make`."""
    actions: tuple[str, ...] = ()
    """Names of the actions of a discrete space, from 0 on; without them, the agent gives numbers."""
    question: str = "Act in the environment."
    max_steps: PositiveInt = 100
    """Then the episode is over, if the environment has not said so before."""
    seed: int = Field(default=0, ge=0)
    """Of the first training problem; held-out problems have seeds of their own, far away."""


class GymnasiumEnvironment:
    """One environment of Gymnasium. `columns`: `seed`, and `options` for its `reset`, if it takes any."""

    def __init__(self, **settings: Any) -> None:
        self._settings = GymnasiumSettings(**settings)
        self._environment = _made(self._settings)
        self._steps = 0
        self._done = True

    def reset(self, problem: Mapping[str, Any]) -> str:
        observation, _ = self._environment.reset(seed=int(problem["seed"]), options=problem.get("options"))
        self._steps, self._done = 0, False
        return as_text(observation)[0]

    def step(self, action: str) -> StepResult:
        if self._done:
            return StepResult.refused("The episode is over.", done=True)
        try:
            chosen = self._read(action)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return StepResult.refused(f"{action[:_SHOWN_CHARS]!r} is no action here: {error}")
        observation, reward, terminated, truncated, _ = self._environment.step(chosen)
        self._steps += 1
        self._done = bool(terminated or truncated or self._steps >= self._settings.max_steps)
        text, images = as_text(observation)
        return StepResult(observation=text, reward=float(reward), done=self._done, images=images)

    def close(self) -> None:
        self._environment.close()

    def _read(self, text: str) -> Any:
        """An action of the environment's space. Raises `ValueError`."""
        from gymnasium import spaces

        if len(text) > _MAX_ACTION_CHARS:
            raise ValueError(f"it is {len(text)} characters long")
        space = self._environment.action_space
        if isinstance(space, spaces.Discrete):
            chosen: Any = space.start + self._number(text.strip(), space.n)
        elif isinstance(space, spaces.Text):
            chosen = text
        else:
            chosen = _like(space, json.loads(text))
        if not space.contains(chosen):
            raise ValueError(f"it is not in {space}")
        return chosen

    def _number(self, text: str, count: Any) -> int:
        names = self._settings.actions
        if text in names:
            return names.index(text)
        if text.isascii() and text.isdigit() and int(text) < count:
            return int(text)
        raise ValueError(f"there are {', '.join(names) or f'0 to {count - 1}'}")


def as_text(observation: Any) -> tuple[str, tuple[bytes, ...]]:
    """An observation as text, and the pictures in it as PNG."""
    if isinstance(observation, str):
        return observation, ()
    pictures: list[bytes] = []
    plain = _plain(observation, pictures.append)
    if isinstance(plain, dict):
        return "\n".join(f"{name}: {_line(value)}" for name, value in plain.items()), tuple(pictures)
    return _line(plain), tuple(pictures)


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(value: Any, found: Callable[[bytes], None]) -> Any:
    """As JSON knows it."""
    import numpy as np

    if isinstance(value, Mapping):
        return {str(name): _plain(each, found) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, found) for each in value]
    if isinstance(value, np.ndarray):
        colours = value.ndim == 3 and value.shape[2] in (3, 4) and value.dtype == np.uint8
        if colours and min(value.shape[:2]) >= _SMALLEST_PICTURE:
            found(_png(value))
            return "(see the picture)"
        return _plain(value.tolist(), found)
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _png(pixels: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def _like(space: Any, value: Any) -> Any:
    """A JSON value as the space wants it."""
    import numpy as np
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            raise ValueError(f"it must be an object with {', '.join(space.spaces)}")
        return {name: _like(part, value[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise ValueError(f"it must be a list of {len(space.spaces)}")
        return tuple(_like(part, each) for part, each in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return np.asarray(value, dtype=space.dtype)
    return value


def _made(settings: GymnasiumSettings) -> Any:
    for module in settings.modules:
        importlib.import_module(module)
    import gymnasium

    return gymnasium.make(settings.id, **settings.options)


def _actions(settings: GymnasiumSettings) -> list[Action]:
    """One tool: the action by its name, or as the environment's space has it."""
    if settings.actions:
        schema: dict[str, Any] = {"type": "string", "enum": list(settings.actions)}
    else:
        schema = {"type": "string", "description": "A number, or JSON, as the environment's action space wants it."}
    return [
        Action(
            name="act",
            description="Do one action.",
            parameters={
                "type": "object",
                "properties": {"action": schema},
                "required": ["action"],
                "additionalProperties": False,
            },
            write=lambda action: action,
        )
    ]


def _problems(settings: GymnasiumSettings, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    return endless_seeds(settings.question, settings.seed, split)


def _check(settings: GymnasiumSettings) -> None:
    try:
        environment = _made(settings)
    except ImportError as error:
        raise ConfigError(
            f"environment 'gymnasium': {error}; `pip install gymnasium`, and the package that brings {settings.id!r}"
        ) from error
    except Exception as error:  # an environment may raise anything when it is made
        raise ConfigError(
            f"environment 'gymnasium': {settings.id!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    environment.close()


KIND = EnvironmentKind(
    name="gymnasium",
    make=GymnasiumEnvironment,
    settings=GymnasiumSettings,
    actions=_actions,
    problems=_problems,
    endless=True,
    prompt="You act in an environment. Call the tool `act` with one action at a time.",
    check=_check,
    packages=("gymnasium",),
)
