"""From a TOML recipe and `--set key=value` to a `RunConfig`.

Errors name the key, its value, and the nearest valid key; all of them at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from agentfly_lib.configs.faults import fault_text, near_key, shown
from agentfly_lib.configs.run import RunConfig
from agentfly_lib.errors import ConfigError

__all__ = [
    "FlowConfig",
    "assign_key",
    "config_keys",
    "config_toml",
    "differing_keys",
    "expand_recipe",
    "flatten",
    "flatten_config",
    "lay_over",
    "load_config",
    "parse_overrides",
    "read_section",
]

Section = TypeVar("Section")


def load_config(recipe: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a recipe and applies overrides such as `optim.lr=1e-4`. Relative paths are seen from the working folder.

    Raises `ConfigError` for anything that is wrong, listing every fault at once.
    """
    values = _read_recipe(recipe)
    for key, value in parse_overrides(overrides):
        assign_key(values, key, value)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _refusal(str(recipe), error) from error


def expand_recipe(values: Any) -> Any:
    """Parameters of a deployment that name a recipe, `{"recipe": "recipes/demo.toml", "run": {"name": "x"}}`, as the
    recipe's values with the others laid over them; anything else as it is.

    Raises `ConfigError` if the recipe cannot be read.
    """
    if not isinstance(values, Mapping) or "recipe" not in values:
        return values
    return lay_over(_read_recipe(Path(str(values["recipe"]))), {k: v for k, v in values.items() if k != "recipe"})


FlowConfig = Annotated[RunConfig, BeforeValidator(expand_recipe)]
"""The parameter of a flow: a whole config, or a recipe's path and what is to be changed in it."""


def read_section(adapter: TypeAdapter[Section], values: Mapping[str, Any], *, section: str, where: str) -> Section:
    """One section of a recipe (`agent.reward`) by itself; `where` says what was read. Raises as `load_config` does."""
    try:
        return adapter.validate_python(dict(values))
    except ValidationError as error:
        raise _refusal(where, error, *section.split(".")) from error


def parse_overrides(overrides: Iterable[str]) -> list[tuple[str, Any]]:
    """Splits `key=value`; the value is read as TOML, and as plain text where it is not TOML."""
    pairs: list[tuple[str, Any]] = []
    for override in overrides:
        key, separator, raw = override.partition("=")
        key = key.strip()
        if not separator or not key or not all(key.split(".")):
            raise ConfigError(f"--set {override!r}: write it as key=value, for example --set optim.lr=1e-4")
        try:
            value = tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError:
            value = raw
        pairs.append((key, value))
    return pairs


def config_toml(config: BaseModel) -> str:
    """The resolved config as TOML; keys that are unset are left out. Reading it back gives an equal config."""
    return tomli_w.dumps(_without_none(config.model_dump(mode="json")))


def differing_keys(old: RunConfig, new: RunConfig) -> list[str]:
    """`key: old -> new` for every key that differs, sorted by key. Where the run lies (`run.root`) is left out."""
    before, after = flatten_config(old), flatten_config(new)
    before["run.root"] = after["run.root"]
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def flatten_config(config: RunConfig) -> dict[str, Any]:
    """Every value by its dotted key, as JSON."""
    return flatten(config.model_dump(mode="json"))


def _read_recipe(recipe: Path) -> dict[str, Any]:
    try:
        text = recipe.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {recipe}: {error.strerror}. {_known_recipes(recipe)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the recipe {recipe} is not UTF-8 text: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the recipe {recipe} is not valid TOML: {error}") from error


def lay_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with others in their place. A table that gets another `type` is replaced as a whole."""
    both = dict(base)
    for key, value in changes.items():
        below = both.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping) and value.get("type") in (None, below.get("type")):
            both[key] = lay_over(below, value)
        else:  # another `type` has other keys
            both[key] = value
    return both


def assign_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Puts a value at a dotted key, making the tables on the way. Raises `ConfigError` where one is no table."""
    *path, leaf = key.split(".")
    node = values
    for depth, part in enumerate(path):
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {key}: {'.'.join(path[: depth + 1])} is the value {shown(child)}, not a table")
        node = child
    node[leaf] = value


def _refusal(where: str, error: ValidationError, *section: str) -> ConfigError:
    faults = "\n".join(f"  - {_explain(fault, section)}" for fault in error.errors())
    return ConfigError(f"{where}: the config cannot be used\n{faults}")


def _explain(fault: ErrorDetails, section: Sequence[str] = ()) -> str:
    location = [*section, *(str(part) for part in fault["loc"])]
    location = _without_tags(location)
    key = ".".join(location)
    if fault["type"] == "extra_forbidden":
        elsewhere = [path for path in config_keys() if path.rsplit(".", 1)[-1] == location[-1]]
        if key in elsewhere:
            hint = "it belongs to another variant; remove it, or choose that variant by its `type`"
        elif elsewhere:
            hint = f"did you mean {' or '.join(elsewhere)}?"
        else:
            hint = near_key(location[-1], _valid_keys(location[:-1]), where=".".join(location[:-1]))
        return f"unknown key {key} (value {shown(fault['input'])}): {hint}"
    return fault_text(fault, key, _models_at(location))


def _models_at(path: Sequence[str]) -> list[type[BaseModel]]:
    """The config classes that may stand at a path of keys (several where variants are possible)."""
    models: list[type[BaseModel]] = [RunConfig]
    for part in path:
        if part.isdigit():
            continue  # a place in a list
        found: list[type[BaseModel]] = []
        for model in models:
            if part in model.model_fields:
                found += _config_classes(model.model_fields[part].annotation)
        models = found
    return models


def _config_classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _config_classes(argument)]


def _valid_keys(path: Sequence[str]) -> list[str]:
    return sorted({key for model in _models_at(path) for key in model.model_fields})


def config_keys() -> list[str]:
    """Every key that a recipe may have, dotted and sorted, of all variants."""

    def walk(model: type[BaseModel], prefix: str) -> Iterable[str]:
        for key, info in model.model_fields.items():
            children = _config_classes(info.annotation)
            if not children:
                yield prefix + key
            for child in children:
                yield from walk(child, f"{prefix}{key}.")

    return sorted(set(walk(RunConfig, "")))


def _without_tags(location: Sequence[str]) -> list[str]:
    """Drops what pydantic puts into an error's location beside keys: values of `type`, alternatives of a value."""
    kept: list[str] = []
    for part in location:
        if "[" in part or part == "bool":  # as in `tuple[str, ...]`
            continue
        models = _models_at(kept)
        tags = {
            str(argument)
            for model in models
            if "type" in model.model_fields
            for argument in get_args(model.model_fields["type"].annotation)
        }
        is_key = any(part in model.model_fields for model in models)
        if not is_key and part in tags and len(models) > 1:
            continue
        kept.append(part)
    return kept


def _known_recipes(recipe: Path) -> str:
    folder = recipe.parent if recipe.parent.is_dir() else Path("recipes")
    names = sorted(str(path) for path in folder.glob("*.toml"))
    return f"Recipes there: {', '.join(names)}" if names else "There is no recipe in that folder"


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys: `{"optim": {"lr": 1}}` is `{"optim.lr": 1}`. Empty ones are left out."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(flatten(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat
