"""The base of every config: frozen, no unknown keys, descriptions beside the fields."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

__all__ = ["Config", "FreeSettings", "SecretError", "first_secret"]


def _without_null(settings: dict[str, Any]) -> dict[str, Any]:
    if (key := _first_null(settings)) is not None:
        raise ValueError(f"{key} is null, which no recipe can say (TOML has no null); leave it out, or give it a value")
    return settings


def _first_null(value: Any, at: str = "") -> str | None:
    if value is None:
        return at
    if isinstance(value, Mapping):
        items = [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{at}[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    return next((found for key, item in items if (found := _first_null(item, key)) is not None), None)


FreeSettings = Annotated[dict[str, Any], AfterValidator(_without_null)]
"""Settings that a recipe passes on to a component, which checks them itself. Nulls are refused at any depth: TOML has
none, so the config read back from a run directory would differ."""


_SECRET = re.compile(r"\s*(?:https?://[^/?#@\s]+@|[a-z][a-z0-9+.-]*://[^/?#@:\s]*:[^/?#@\s]+@)", re.IGNORECASE)
"""An address with a password in it, or over HTTP with a user, which can be a token."""


class SecretError(ValueError):
    """A value holds a password or a token; whoever reports it leaves the value out."""


def first_secret(value: Any, at: str = "") -> str | None:
    """Where in a value there is an address with a password; None if there is none."""
    if isinstance(value, str):
        return at if _SECRET.match(value) else None
    if isinstance(value, Mapping):
        items = [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{at}[{index}]", item) for index, item in enumerate(value)]
    else:  # a part that is a config has looked for itself
        return None
    return next((found for key, item in items if (found := first_secret(item, key)) is not None), None)


@functools.cache
def _field_texts(module: str) -> Mapping[str, Mapping[str, str]]:
    """The text below each annotated name, by the classes of a module; none where there is no source, as in a shell."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):
        return {}
    return dict(_classes(tree, ""))


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, dict(_texts(child))
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


class Config(BaseModel):
    """A part of a recipe. Unknown keys and passwords are errors; values never change after loading."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        validate_default=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Describes each field by the text below it, as pydantic's `use_attribute_docstrings` does, which reads the
        module anew for each class: half of the time of importing all configs."""
        texts = _field_texts(cls.__module__).get(cls.__qualname__, {})
        for name in texts.keys() & cls.__pydantic_fields__.keys():
            if cls.__pydantic_fields__[name].description is None:
                cls.__pydantic_fields__[name].description = texts[name]

    @model_validator(mode="after")
    def _holds_no_secret(self) -> Self:
        if (key := first_secret(self.__dict__)) is not None:
            raise SecretError(
                f"{key} is an address with a user or a password, and a recipe is stored and shown; leave them out and "
                "put them into an environment variable"
            )
        return self
