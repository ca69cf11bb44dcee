"""Options of an agent class of one's own, as a recipe gives them: checked against the class's signature.

[agent]
type = "custom"
name = "package.module:ArrowAgent"
[agent.options]
arrow = "=>"
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic_core import SchemaError

from agentfly_lib.configs.agent import AgentSettings
from agentfly_lib.configs.faults import explain
from agentfly_lib.errors import ConfigError

if TYPE_CHECKING:
    from agentfly_lib.agents.agent import Agent

__all__ = ["read_options"]

_WHERE = "agent.options"
_ANYTHING = ConfigDict(arbitrary_types_allowed=True, extra="forbid")


def read_options(kind: type[Agent], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as arguments of the class, checked by their annotations.

    Raises `ConfigError` naming the key that the class does not have (with the nearest), whose value does not fit, or
    that is missing.
    """
    known = _parameters(kind)
    for key in options.keys() & AgentSettings.model_fields.keys() - known.keys():
        raise ConfigError(f"{_WHERE}.{key}: every agent has this; write it as agent.{key}")
    fields: dict[str, Any] = {
        f"a{index}": (annotation, Field(default, alias=name))  # no parameter's name can collide with pydantic's
        for index, (name, (annotation, default)) in enumerate(known.items())
    }
    try:
        values = create_model("Options", __config__=_ANYTHING, **fields).model_validate(dict(options))
    except ValidationError as error:
        raise ConfigError(f"{kind.__name__}: {explain(error, known, where=_WHERE)}") from error
    return {name: getattr(values, f"a{index}") for index, name in enumerate(known) if name in options}


def _parameters(kind: type[Agent]) -> dict[str, tuple[Any, Any]]:
    """Annotation and default of all keywords that the class and those it derives from add to an `Agent`'s."""
    from agentfly_lib.agents.agent import Agent

    found: dict[str, tuple[Any, Any]] = {}
    common = inspect.signature(Agent.__init__).parameters
    for base in kind.__mro__[: kind.__mro__.index(Agent)]:
        if "__init__" not in vars(base):
            continue
        function = vars(base)["__init__"]
        parameters = inspect.signature(function).parameters
        hints = _hints(function, kind)
        for name, parameter in list(parameters.items())[2:]:  # self and the model come first, whatever they are called
            if name in common or parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                continue
            default = ... if parameter.default is parameter.empty else parameter.default
            found.setdefault(name, (_checkable(hints.get(name, Any)), default))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break  # it passes nothing on that it does not name
    return found


def _checkable(annotation: Any) -> Any:
    """The annotation, or `Any` for one that no value can be checked against (a protocol)."""
    try:
        create_model("Option", __config__=_ANYTHING, a=(annotation, ...))
    except (PydanticUserError, SchemaError):
        return Any
    return annotation


def _hints(function: Any, kind: type[Agent]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"{kind.__name__}: an annotation of its options cannot be resolved: {error}") from error
