"""Rewards that are made with settings: `@reward_factory` on a function that returns one.

In Python it is called as any function; in a recipe its arguments are the reward's `settings`, checked by their types.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec

from pydantic import ValidationError, validate_call

from agentfly_lib.errors import ConfigError
from agentfly_lib.rewards.reward import Reward

__all__ = ["RewardFactory", "reward_factory"]

Arguments = ParamSpec("Arguments")


class RewardFactory(Generic[Arguments]):
    """Makes rewards; what `@reward_factory` gives."""

    def __init__(self, function: Callable[Arguments, Reward]) -> None:
        self.function = function
        self.__name__ = self.name = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Reward:
        return self.function(*args, **kwargs)

    def make(self, settings: Mapping[str, Any]) -> Reward:
        """A reward with the settings of a recipe. Raises `ConfigError` naming the key."""
        known = inspect.signature(self.function).parameters
        for key in settings.keys() - known.keys():
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
            raise ConfigError(f"reward {self.name!r} has no setting {key!r}: {hint}")
        for key, parameter in known.items():
            if parameter.default is parameter.empty and key not in settings:
                raise ConfigError(f"reward {self.name!r} needs the setting {key!r}")
        try:
            made = validate_call(self.function)(**settings)  # pyright: ignore[reportCallIssue] - checked above
        except ValidationError as error:
            fault = error.errors()[0]
            key = ".".join(map(str, fault["loc"]))
            raise ConfigError(f"reward {self.name!r}: setting {key} = {fault['input']!r}: {fault['msg']}") from error
        if not isinstance(made, Reward):
            raise ConfigError(f"reward factory {self.name!r} made a {type(made).__name__}, not a reward")
        return made


def reward_factory(function: Callable[Arguments, Reward]) -> RewardFactory[Arguments]:
    """Makes a recipe's reward of a function with keyword arguments that returns a `Reward`."""
    return RewardFactory(function)
