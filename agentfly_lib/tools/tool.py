"""`@tool` makes a function, synchronous or not, a tool that a model can call.

    @tool
    def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
        \"\"\"Weather of a city.

        Args:
            city: Its name.
        \"\"\"

The function stays callable as it was. On a method, the tool is bound to the instance that it is taken from.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

from agentfly_lib.bounded import is_async
from agentfly_lib.envs.spec import EnvironmentSpec
from agentfly_lib.errors import ConfigError
from agentfly_lib.resources.spec import AnySpec
from agentfly_lib.tools.given_schema import GivenArguments
from agentfly_lib.tools.schema import Arguments, read_signature
from agentfly_lib.tools.settings import ToolSettings, read_settings

__all__ = ["Tool", "tool"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """A function that models can call, with its limits. Calling the tool calls the function."""

    name: str
    function: Callable[..., Any]
    summary: str | None = None
    """Description for the model in place of the docstring's."""
    timeout: float | None = None
    """Seconds; the agent's limit if unset."""
    max_chars: int | None = None
    """Longest observation; the agent's limit if unset."""
    finishes: bool = False
    """A successful call ends the trajectory, and what it returns is the answer."""
    retries: int = 0
    """Tries after the first when the function raises."""
    needs: AnySpec | None = None
    """What its calls need: opened before a trajectory's first one, then in `context.resources`, closed at its end."""
    settings: ToolSettings | None = None
    """What it was made with; see `with_settings`."""
    make: Callable[[Any], Tool] | None = None
    """Makes the same tool with other settings, of the type of `settings`."""
    signature: Arguments | GivenArguments | None = None
    """What it takes, if that is not to be read from the function (a tool of another system, which brings a schema)."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} is not a valid name for a tool: use up to 64 letters, digits, _ and -")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"tool {self.name}: timeout={self.timeout} must be more than 0 seconds")
        if self.max_chars is not None and self.max_chars < 1:
            raise ConfigError(f"tool {self.name}: max_chars={self.max_chars} must be at least 1")
        if self.retries < 0:
            raise ConfigError(f"tool {self.name}: retries={self.retries} must be at least 0")
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.function, attribute):
                object.__setattr__(self, attribute, getattr(self.function, attribute))
        object.__setattr__(self, "__wrapped__", self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        if instance is None or not self.needs_instance:
            return self
        return replace(self, function=self.function.__get__(instance, owner))

    @cached_property
    def arguments(self) -> Arguments | GivenArguments:
        """Read on first use, when all names in its annotations exist. Raises `ConfigError`."""
        return self.signature or read_signature(self.function, tool=self.name)

    @property
    def description(self) -> str:
        return self.summary if self.summary is not None else self.arguments.description

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self.arguments.schema

    @property
    def schema(self) -> dict[str, Any]:
        """What chat templates take as an entry of `tools`."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    @property
    def may_end(self) -> bool:
        """A call may end the trajectory, or change what an environment says that it is worth."""
        return self.finishes or isinstance(self.needs, EnvironmentSpec)

    def check(self) -> None:
        """Raises `UserError` if this tool cannot work here: asked before any rollout begins, not in one."""
        if self.needs is not None:
            self.needs.check()
        if self.settings is not None:
            self.settings.check(self.name)

    def with_settings(self, values: Mapping[str, Any]) -> Tool:
        """This tool, made with these settings. Raises `ConfigError` naming the key and the nearest valid one."""
        if self.make is None or self.settings is None:
            raise ConfigError(f"tool {self.name!r} has no settings")
        return self.make(read_settings(type(self.settings), values, tool=self.name))

    @property
    def needs_instance(self) -> bool:
        """A method (its first parameter is `self`) that was not taken from an instance, and so cannot be executed."""
        if inspect.ismethod(self.function) or not hasattr(self.function, "__get__"):
            return False
        try:
            parameters = inspect.signature(self.function).parameters
        except ValueError:  # a builtin that does not tell its signature
            return False
        return next(iter(parameters), None) == "self"


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    max_chars: int | None = None,
    finishes: bool = False,
    retries: int = 0,
    needs: AnySpec | None = None,
    settings: ToolSettings | None = None,
    make: Callable[[Any], Tool] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    max_chars: int | None = None,
    finishes: bool = False,
    retries: int = 0,
    needs: AnySpec | None = None,
    settings: ToolSettings | None = None,
    make: Callable[[Any], Tool] | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool of a function or method; bare, or with settings (see the fields of `Tool`).

    Raises `ConfigError` for a name or a limit that cannot be; parameters are read when the schema is first needed.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        if isinstance(function, classmethod):
            raise ConfigError("@tool does not take class methods; put it on a function, a method or a static method")
        if isinstance(function, staticmethod):
            function = function.__func__
        return Tool(
            name=name or getattr(function, "__name__", type(function).__name__),
            function=function,
            summary=description,
            timeout=timeout,
            max_chars=max_chars,
            finishes=finishes,
            retries=retries,
            needs=needs,
            settings=settings,
            make=make,
        )

    return decorate(function) if function is not None else decorate
