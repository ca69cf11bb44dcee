"""The recipes' reference as Markdown: every key, its type, its default and its docstring, from the config classes.

A section that comes in variants (`agent`, `data`, ...) shows the keys that all of them have once, then what each adds.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentfly_lib.configs import RunConfig

__all__ = ["key_anchors", "recipe_reference"]

INTRODUCTION = """# Recipes

A recipe is a TOML file. Every key below can stand in it, and can be changed on the command line with `--set key=value`.
What a recipe does not say has its default; a key that is not here is refused, with the nearest one named, before
anything is started. This page is made from the config classes themselves. `agentfly config check RECIPE` prints a
recipe with all its defaults.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A line of a table."""

    path: str
    field: FieldInfo

    @property
    def models(self) -> list[type[BaseModel]]:
        return _models(self.field.annotation)

    @property
    def is_list(self) -> bool:
        return str(self.field.annotation).startswith("tuple[")


def recipe_reference(recipes: Sequence[Path]) -> str:
    """The page: the recipes that come with the program, one of them whole, then every key."""
    anchors: set[str] = set()
    sections = (text for key in _keys(RunConfig, "") for text in _section(key, 2, anchors))
    return INTRODUCTION + "\n\n".join([*_shipped(recipes), *sections]) + "\n"


def key_anchors(page: str) -> set[str]:
    """The keys that a page explains."""
    return {line.split("`")[1] for line in page.splitlines() if line.startswith(("| `", "| [`"))}


def _shipped(recipes: Sequence[Path]) -> Iterator[str]:
    rows = [f"| `recipes/{path.name}` | {_cell(_first_comment(path.read_text()))} |" for path in recipes]
    yield "\n".join(["| comes with the program | |", "| --- | --- |", *rows])
    demo = next(path for path in recipes if path.stem == "demo")
    yield f'```toml title="recipes/demo.toml"\n{demo.read_text().strip()}\n```'


def _first_comment(text: str) -> str:
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    whole = " ".join(line.lstrip("# ") for line in lines)
    return re.split(r"(?<=[.?])\s", whole, maxsplit=1)[0]


def _keys(model: type[BaseModel], prefix: str) -> list[Key]:
    return [Key(path=prefix + name, field=field) for name, field in model.model_fields.items()]


def _section(key: Key, level: int, anchors: set[str]) -> Iterator[str]:
    """A section and those below it, as blocks of Markdown. `anchors` are those that the page has so far."""
    models, path = key.models, key.path
    title = f"[[{path}]]" if key.is_list else f"[{path}]"
    yield f"{'#' * min(level, 4)} `{title}` {{ #{path} }}"
    inside = {model: _keys(model, f"{path}.") for model in models}
    if len(models) == 1:
        yield _doc(models[0])
        yield from _table(inside[models[0]], anchors)
        yield from _below(inside[models[0]], level, anchors)
        return
    shared = _shared(list(inside.values()))
    if key.field.description:
        yield key.field.description
    kinds = ", ".join(f"[`{kind}`](#{path}-{kind})" for kind in map(_kind, models))
    required = key.field.is_required()
    yield f"`{path}.type` is one of {kinds}; " + (
        "say which." if required else f"the default is {_default(key.field)}."
    )
    if shared:
        yield "All of them have:"
        yield from _table(shared, anchors)
    for model in models:
        own = [each for each in inside[model] if not _among(each, shared) and not each.path.endswith(".type")]
        kind = _kind(model)
        yield f'{"#" * min(level + 1, 5)} `{path}.type = "{kind}"` {{ #{path}-{kind} }}'
        yield _doc(model)
        yield from _table(own, anchors)
        yield from _below(own, level + 1, anchors)
    yield from _below(shared, level, anchors)


def _below(keys: list[Key], level: int, anchors: set[str]) -> Iterator[str]:
    for key in keys:
        if key.models and key.path not in anchors:  # variants share sections too
            anchors.add(key.path)
            yield from _section(key, level + 1, anchors)


def _shared(variants: list[list[Key]]) -> list[Key]:
    return [key for key in variants[0] if all(_among(key, others) for others in variants[1:])]


def _among(key: Key, keys: list[Key]) -> bool:
    """The same key, with the same type and the same default."""
    return any(
        each.path == key.path
        and each.field.annotation == key.field.annotation
        and _default(each.field) == _default(key.field)
        for each in keys
    )


def _table(keys: list[Key], anchors: set[str]) -> Iterator[str]:
    if not keys:
        return
    rows = ["| key | type | default | |", "| --- | --- | --- | --- |"]
    for key in keys:
        name = f"`{key.path}`"
        if key.models:
            name = f"[{name}](#{key.path})"
        elif key.path not in anchors:  # variants share keys
            anchors.add(key.path)
            name += f"{{ #{key.path} }}"
        cells = (name, _type(key), _default(key.field), _cell(key.field.description or ""))
        rows.append(f"| {' | '.join(cells)} |")
    yield "\n".join(rows)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _kind(model: type[BaseModel]) -> str:
    (kind,) = get_args(model.model_fields["type"].annotation)
    return str(kind)


def _doc(model: type[BaseModel]) -> str:
    return cleandoc(model.__doc__ or "")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "*required*" if field.default_factory is None else "*empty*"
    return _value(field.default)


def _value(value: Any) -> str:
    if value is None:
        return "*unset*"
    if isinstance(value, BaseModel):
        kind = getattr(value, "type", None)
        return f"`{kind}`" if kind else "*its own*"
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, Mapping) or value == ():
        return f"`{json.dumps(dict(value) if value else [] if value == () else {})}`"
    return f"`{json.dumps(value)}`"


def _type(key: Key) -> str:
    if key.models:
        return ("list of " if key.is_list else "") + f"[table](#{key.path})"
    field = key.field
    annotation = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return _cell(_words(TypeAdapter(annotation).json_schema()))


def _words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        kinds = [_words(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        inner = schema.get("items") or next(iter(schema.get("prefixItems", ())), {})
        return f"list of {_words(inner)}"
    name = {"string": "text", "number": "number", "integer": "integer", "boolean": "true or false", "object": "table"}
    words = name.get(str(kind), "any value")
    if schema.get("format") == "path":
        words = "path"
    bounds = {"exclusiveMinimum": "> ", "minimum": ">= ", "exclusiveMaximum": "< ", "maximum": "<= "}
    limits = [f"{sign}{schema[bound]:g}" for bound, sign in bounds.items() if bound in schema]
    return ", ".join([words, *limits])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
