"""Arguments that come with a JSON Schema of their own instead of a Python signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools.schema import ArgumentError

__all__ = ["GivenArguments"]

_SHOWN_FAULTS = 5


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
        if faults:
            raise ArgumentError("; ".join(_explain(fault) for fault in faults[:_SHOWN_FAULTS]))
        return dict(arguments)

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator
        from referencing import Registry

        return Draft202012Validator(self.schema, registry=Registry())  # which fetches no reference from anywhere


def _explain(fault: Any) -> str:
    place = ".".join(map(str, fault.path))
    message = fault.message if len(fault.message) <= 200 else fault.message[:197] + "..."
    return f"argument {place}: {message}" if place else message
