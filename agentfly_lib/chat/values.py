"""Values of formats that write arguments as text between tags, where `42` may be a number or a string.

The tool's schema decides. A parameter that takes only strings gets the text as it stands; otherwise text that is JSON
is read, and any other text stays a string (the tool then says what it wanted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentfly_lib.chat.json_call import Refused, load_json

__all__ = ["ParameterTypes"]


@dataclass(frozen=True, slots=True)
class ParameterTypes:
    """What the tools say about their parameters."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Tool schemas, as chat templates take them."""

    def read(self, tool: str, parameter: str, text: str) -> Any:
        """The value that `text` stands for."""
        schema = self._schema(tool, parameter)
        if schema is not None and _only_strings(schema):
            return text
        try:
            value = load_json(text.strip(), expected="a JSON value")
        except Refused:
            return text
        # Without a schema, a quoted text is a text that has quotes.
        return text if schema is None and isinstance(value, str) else value

    def _schema(self, tool: str, parameter: str) -> Mapping[str, Any] | None:
        for each in self.tools:
            function = each.get("function", each)
            if function.get("name") == tool:
                found = function.get("parameters", {}).get("properties", {}).get(parameter)
                return found if isinstance(found, Mapping) else None
        return None


def _only_strings(schema: Mapping[str, Any]) -> bool:
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return all(isinstance(each, Mapping) and _only_strings(each) for each in alternatives)
    if isinstance(values := schema.get("enum"), Sequence):
        return all(isinstance(value, str) for value in values)
    return schema.get("type") == "string" or isinstance(schema.get("const"), str)
