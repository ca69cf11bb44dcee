"""Rewards that are made with settings: `@reward_factory` on a function that returns one.

In Python it is called as any function; in a recipe its arguments are the reward's `settings`, checked by their types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec

from pydantic import ValidationError, validate_call

from agentfly_lib.configs.faults import explain
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
        try:
            made = validate_call(self.function)(**settings)  # pyright: ignore[reportCallIssue] - that is what it checks
        except ValidationError as error:
            known = inspect.signature(self.function).parameters
            raise ConfigError(f"reward {self.name!r}: {explain(error, known, where='settings')}") from error
        if not isinstance(made, Reward):
            raise ConfigError(f"reward factory {self.name!r} made a {type(made).__name__}, not a reward")
        return made


def reward_factory(function: Callable[Arguments, Reward]) -> RewardFactory[Arguments]:
    """Makes a recipe's reward of a function with keyword arguments that returns a `Reward`."""
    return RewardFactory(function)
