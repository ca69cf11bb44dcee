"""Arguments that come with a JSON Schema of their own instead of a Python signature."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import regex

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools.schema import ArgumentError

__all__ = ["GivenArguments"]

_SHOWN_FAULTS = 5
_PATTERN_SECONDS = 0.5
"""For all texts and patterns of a call."""
_MAX_STEPS = 50_000
"""Keywords of a schema that are looked at for a call. A few lines of a schema can ask for more than a day's work."""
_MAX_CHARS = 1 << 16
"""Of a description and a schema, which stand in every prompt."""


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
            chars = len(self.description) + len(json.dumps(self.schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"this is not a JSON Schema: {error}") from error
        if chars > _MAX_CHARS:
            raise ConfigError(f"its description and its schema have {chars} characters; the limit is {_MAX_CHARS}")
        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            raise ConfigError(f"this is not a JSON Schema: {error.message}") from error

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are. Raises `ArgumentError` naming the culprits."""
        from referencing.exceptions import Unresolvable

        used = _used.set(_Work())
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
        except _TooMuchWork as error:
            raise ArgumentError("its schema asks for too much work to check these arguments") from error
        finally:
            _used.reset(used)
        if faults:
            raise ArgumentError("; ".join(_explain(fault) for fault in faults[:_SHOWN_FAULTS]))
        return dict(arguments)

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator, validators
        from referencing import Registry

        ours = {
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
        }
        keywords = dict(Draft202012Validator.VALIDATORS) | ours
        bounded = validators.extend(
            Draft202012Validator, {name: _counted(name, check) for name, check in keywords.items()}
        )
        return bounded(self.schema, registry=Registry())  # which fetches no reference from anywhere


class _TooMuchWork(Exception):
    pass


@dataclass
class _Work:
    steps: int = 0
    pattern_seconds: float = 0.0


_used: ContextVar[_Work] = ContextVar("used")
"""By the call whose arguments are being checked."""


def _counted(name: str, check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        work = _used.get()
        work.steps += 1
        if name == "uniqueItems" and isinstance(instance, list):  # each is compared with each
            work.steps += len(instance) ** 2 // 100
        if work.steps > _MAX_STEPS:
            raise _TooMuchWork
        yield from check(validator, value, instance, schema) or ()

    return counted


# The keywords with patterns, as `jsonschema` has them but for the time: `re` knows no limit and lets nothing else run.


def _found(pattern: str, text: str) -> bool:
    """Raises `TimeoutError`."""
    work, began = _used.get(), time.monotonic()
    try:
        return regex.search(pattern, text, timeout=max(0.001, _PATTERN_SECONDS - work.pattern_seconds)) is not None
    finally:
        work.pattern_seconds += time.monotonic() - began


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
