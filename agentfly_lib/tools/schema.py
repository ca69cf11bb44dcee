"""From a function's signature and docstring to the JSON Schema that models read, and back from JSON to arguments.

Types come from annotations (through pydantic: Optional, unions, Literal, enums, lists, dicts, dataclasses, models),
descriptions from the docstring (Google, NumPy or reST). The same pydantic model validates what a model sends, so that
what is advertised is what is accepted; values are coerced only where pydantic considers it safe.
"""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools.call import ToolContext

__all__ = ["ArgumentError", "Arguments", "read_signature"]


class ArgumentError(ValueError):
    """The message for a model whose arguments do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a tool takes."""

    schema: dict[str, Any]
    """JSON Schema of the arguments object."""
    description: str
    """The docstring's summary and body, without its parameter sections."""
    names: tuple[str, ...]
    context_name: str | None
    """Parameter that receives the `ToolContext`."""
    model: type[BaseModel]
    """Its fields are numbered, so that no argument's name can collide with a method of pydantic's."""
    open: bool
    """The function takes `**kwargs`: arguments beyond `names` are passed on."""

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function, defaults left to it. Raises `ArgumentError` naming every culprit."""
        try:
            values = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            raise ArgumentError("; ".join(self._explain(dict(fault)) for fault in error.errors())) from error
        given = values.model_fields_set
        keywords = {name: getattr(values, f"a{i}") for i, name in enumerate(self.names) if f"a{i}" in given}
        return keywords | (values.model_extra or {})

    def _explain(self, fault: Mapping[str, Any]) -> str:
        place = ".".join(map(str, fault["loc"]))
        expected = self._expected(fault["loc"][0]) if fault["loc"] else ""
        if fault["type"] == "missing" and len(fault["loc"]) == 1:
            return f"missing argument {place}, expected {expected}"
        if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
            return f"unknown argument {place}, expected {', '.join(self.names) or 'no arguments'}"
        got = repr(fault["input"])
        got = got if len(got) <= 60 else got[:57] + "..."
        return f"argument {place} is {got}, expected {expected}: {fault['msg']}"

    def _expected(self, name: Any) -> str:
        schema = self.schema["properties"].get(name, {})
        kinds = [part.get("type") or part.get("const") for part in schema.get("anyOf", [schema])]
        if schema.get("enum"):
            return f"one of {schema['enum']}"
        return " or ".join(str(kind) for kind in kinds if kind) or "a value"


def read_signature(function: Callable[..., Any], *, tool: str) -> Arguments:
    """Reads a function. Raises `ConfigError` naming the tool and the parameter that cannot be described."""
    written = _written(function)
    docstring = docstring_parser.parse(inspect.getdoc(written) or inspect.getdoc(function) or "")
    described = {parameter.arg_name.split()[0]: parameter.description or "" for parameter in docstring.params}
    hints = _hints(written, tool)
    fields: dict[str, Any] = {}
    names: list[str] = []
    context_name: str | None = None
    takes_more = False
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise ConfigError(f"tool {tool}: {error}; wrap it in a function of your own") from error
    for index, parameter in enumerate(parameters):
        name, annotation = parameter.name, hints.get(parameter.name, Any)
        if index == 0 and name == "self":
            continue
        if _is_context(name, annotation):
            context_name = name
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_more = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"tool {tool}: the parameter {name} cannot be given by name, and models name every argument"
            )
        else:
            default = ... if parameter.default is parameter.empty else parameter.default
            info = Field(default, alias=name, description=described.get(name) or None)
            fields[f"a{len(names)}"] = (annotation, info)
            names.append(name)
    settings = ConfigDict(extra="allow" if takes_more else "forbid", arbitrary_types_allowed=False, allow_inf_nan=False)
    try:
        model = create_model("Arguments", __config__=settings, **fields)
        schema = model.model_json_schema(schema_generator=_Untitled)
    except (PydanticUserError, TypeError) as error:
        raise ConfigError(f"tool {tool}: its parameters cannot be described as JSON Schema: {error}") from error
    return Arguments(
        schema=_object_schema(schema),
        description="\n\n".join(filter(None, [docstring.short_description, docstring.long_description])).strip(),
        names=tuple(names),
        context_name=context_name,
        model=model,
        open=takes_more,
    )


class _Untitled(GenerateJsonSchema):
    """Leaves out titles that pydantic makes up, which cost tokens and say nothing, and defaults that are no JSON."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def encode_default(self, dft: Any) -> Any:
        """Raises `PydanticSerializationError`, whereupon the default is left out."""
        default = super().encode_default(dft)
        try:
            json.dumps(default, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from error
        return default

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    schema = dict(schema)
    definitions = {
        name: {key: value for key, value in definition.items() if key != "title"}
        for name, definition in schema.pop("$defs", {}).items()
    }
    result: dict[str, Any] = {
        "type": "object",
        "properties": schema.get("properties", {}),
        "required": schema.get("required", []),
        "additionalProperties": schema.get("additionalProperties", False),
    }
    return result | ({"$defs": definitions} if definitions else {})


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What carries annotations and docstring: of a partial its function, of a callable object its `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def _hints(function: Callable[..., Any], tool: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"tool {tool}: an annotation cannot be resolved: {error}") from error


def _is_context(name: str, annotation: Any) -> bool:
    if annotation is ToolContext or ToolContext in typing.get_args(annotation):
        return True
    return name == "context" and annotation is Any
