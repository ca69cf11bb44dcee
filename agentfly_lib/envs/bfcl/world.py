"""The systems of one task, in one state: an episode has two, the policy's and the ground truth's."""

from __future__ import annotations

import ast
import copy
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "World", "read_call"]

_LARGEST_NUMBER = 10**15
_LARGEST = {"precision": 1000, "exponent": 1000}
"""Beyond these the calculator would be busy for hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Of a function by its name."""

    name: str
    arguments: Mapping[str, Any]
    positional: Sequence[Any] = ()
    """Of the ground truth's calls, which sometimes leave the names out."""


def read_call(source: str) -> Call:
    """A call of the ground truth, written as Python with literal arguments. Raises `ValueError` for anything else."""
    try:
        call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise TypeError("it is no call")
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        positional = [ast.literal_eval(value) for value in call.args]
    except (SyntaxError, ValueError, TypeError) as error:
        raise ValueError(f"{source!r} is no call with literal arguments: {error}") from error
    return Call(name=call.func.id, arguments=named, positional=positional)


@dataclass(slots=True)
class World:
    """Systems by name, and what every call so far returned."""

    systems: dict[str, Any]
    results: list[str] = field(default_factory=list)

    @classmethod
    def create(cls, names: Sequence[str], configs: Mapping[str, Any], *, long_context: bool) -> World:
        """The systems as a task begins."""
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

        systems: dict[str, Any] = {}
        for name in names:
            system = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                system._load_scenario(copy.deepcopy(configs.get(name, {})), long_context=long_context)
            systems[name] = system
        return cls(systems)

    def call(self, system: str, call: Call) -> str:
        """Calls a function, and returns and keeps its result, or its exception, in the words of the package."""
        try:
            _bound(call.arguments)
            result = _written(getattr(self.systems[system], call.name)(*call.positional, **call.arguments))
        except Exception as error:  # noqa: BLE001  a function of the package, with arguments that a model chose
            result = f"Error during execution: {error}"
        self.results.append(result)
        return result

    def owner(self, function: str) -> str:
        """The system that has this function; the last one, if several have it, as in the package."""
        return [name for name, system in self.systems.items() if hasattr(system, function)][-1]


def _bound(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        limit = _LARGEST.get(name, _LARGEST_NUMBER)
        values = value if isinstance(value, list) else [value]
        if any(isinstance(number, int | float) and not -limit <= number <= limit for number in values):
            raise ValueError(f"{name} must be between -{limit} and {limit}")


def _written(result: Any) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)
