"""Arguments that come with a JSON Schema of their own instead of a Python signature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import regex

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools.schema import ArgumentError

__all__ = ["GivenArguments"]

_SHOWN_FAULTS = 5
_PATTERN_SECONDS = 0.5
"""For one text and one pattern."""


@dataclass(frozen=True, kw_only=True)
class GivenArguments:
    """What a tool of another system takes. The same members as `schema.Arguments`."""

    schema: dict[str, Any]
    description: str
    context_name: str | None = None
    """Keyword that receives the `ToolContext`."""

    def __post_init__(self) -> None:
        from jsonschema import Draft202012Validator, SchemaError

        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            raise ConfigError(f"this is no JSON Schema: {error.message}") from error

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are. Raises `ArgumentError` naming the culprits."""
        from referencing.exceptions import Unresolvable

        try:
            faults = sorted(
                self._validator.iter_errors(dict(arguments)), key=lambda fault: [str(p) for p in fault.path]
            )
        except Unresolvable as error:
            raise ArgumentError(f"its schema refers to {error.ref!r}, which is nowhere to be found") from error
        except TimeoutError as error:
            raise ArgumentError("a text takes too long to be compared with the pattern that it must match") from error
        except RecursionError as error:
            raise ArgumentError("the arguments are nested too deeply") from error
        except ArithmeticError as error:
            raise ArgumentError("a number is too large") from error
        if faults:
            raise ArgumentError("; ".join(_explain(fault) for fault in faults[:_SHOWN_FAULTS]))
        return dict(arguments)

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator, validators
        from referencing import Registry

        bounded = validators.extend(
            Draft202012Validator,
            {
                "pattern": _pattern,
                "patternProperties": _pattern_properties,
                "additionalProperties": _additional_properties,
            },
        )
        return bounded(self.schema, registry=Registry())  # which fetches no reference from anywhere


# The keywords with patterns, as `jsonschema` has them but for the time: `re` knows no limit and lets nothing else run.


def _found(pattern: str, text: str) -> bool:
    """Raises `TimeoutError`."""
    return regex.search(pattern, text, timeout=_PATTERN_SECONDS) is not None


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _found(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [name for name in instance if name not in known and not any(_found(each, name) for each in patterns)]
    if validator.is_type(allowed, "object"):
        for name in extras:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extras:
        yield ValidationError(
            f"there is no argument {', '.join(map(repr, extras))}; known: {', '.join(known) or 'none'}"
        )


def _explain(fault: Any) -> str:
    place = ".".join(map(str, fault.path))
    message = fault.message if len(fault.message) <= 200 else fault.message[:197] + "..."
    return f"argument {place}: {message}" if place else message
