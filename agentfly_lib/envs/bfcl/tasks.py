"""What the package `bfcl-eval` brings, as ours: its functions as actions, its tasks as rows."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentfly_lib.envs.environment import Action, EnvironmentSettings
from agentfly_lib.errors import ConfigError

__all__ = ["DOCUMENTS", "DONE", "BfclSettings", "System", "actions", "check", "functions_of", "problems"]

DONE = "done"
"""The action that ends the user's current request."""

System = Literal[
    "GorillaFileSystem",
    "MathAPI",
    "MessageAPI",
    "TicketAPI",
    "TradingBot",
    "TravelAPI",
    "TwitterAPI",
    "VehicleControlAPI",
]

DOCUMENTS: Mapping[System, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""Systems, and where the package describes their functions."""

_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_SCHEMA_KEYS = ("description", "enum", "default")


class BfclSettings(EnvironmentSettings):
    """Which tasks, and what they are worth."""

    category: Literal["base", "long_context", "miss_param"] = "base"
    """`miss_param`: some requests lack what they need until the user's next message."""
    systems: Annotated[tuple[System, ...], Field(min_length=1)] = tuple(DOCUMENTS)
    """Only tasks that these suffice for, and their functions as tools. All together are a prompt of 23,000 tokens."""
    reward: Literal["requests", "task"] = "requests"
    """`requests`: the share of the user's requests that were done before one was not. `task`: as on the leaderboard,
    1 if all were, else 0."""
    train_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Of the tasks, drawn by their ids; the others are the eval split. 0 evaluates on all of them."""


def check(settings: BfclSettings) -> None:
    """Raises `ConfigError` if the package is not there."""
    for package in ("bfcl_eval", "mpmath"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                "the environment bfcl needs bfcl-eval and mpmath: `pip install --no-deps bfcl-eval mpmath` (with its "
                "dependencies bfcl-eval would replace half of what is installed)"
            )


def problems(settings: BfclSettings, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """Rows: `question` is the user's first message; the other columns are the package's own.

    Raises `ConfigError` if the package is not there, or has no task for the systems.
    """
    check(settings)
    name = f"multi_turn_{settings.category}"
    truths = {row["id"]: row["ground_truth"] for row in _rows(_data(f"possible_answer/BFCL_v*_{name}.json"))}
    tasks = [
        task for task in _rows(_data(f"BFCL_v*_{name}.json")) if set(task["involved_classes"]) <= set(settings.systems)
    ]
    if not tasks:
        raise ConfigError(f"bfcl: no task of {name} can be done with systems = {list(settings.systems)} alone")
    tasks.sort(key=lambda task: hashlib.sha256(task["id"].encode()).digest())
    first_of_eval = round(settings.train_share * len(tasks))
    for task in tasks[:first_of_eval] if split == "train" else tasks[first_of_eval:]:
        requests = ["\n".join(message["content"] for message in turn) for turn in task["question"]]
        yield {
            "id": task["id"],
            "question": requests[0],
            "requests": requests,
            "involved_classes": task["involved_classes"],
            "initial_config": task["initial_config"],
            "ground_truth": truths[task["id"]],
        }


def actions(settings: BfclSettings) -> Sequence[Callable[..., str] | Action]:
    """One for each function of the systems, and `done`."""
    check(settings)
    return [*(_action(document) for name in settings.systems for document in _documents(name)), done]


def done(message: str = "") -> str:
    """The user's request is done, or cannot be done: hear what the user wants next.

    Args:
        message: What to tell the user.
    """
    return write_call(DONE, message=message)


def write_call(function: str, /, **arguments: Any) -> str:
    """A call as `step` takes it."""
    return json.dumps({"name": function, "arguments": arguments}, ensure_ascii=False)


def functions_of(systems: Sequence[System]) -> dict[str, System]:
    """From the name of each function that models may call to its system."""
    return {document["name"]: name for name in systems for document in _documents(name)}


def _action(document: Mapping[str, Any]) -> Action:
    return Action(
        name=document["name"],
        description=document["description"],
        parameters=_json_schema(document["parameters"]) | {"additionalProperties": False},
        write=functools.partial(write_call, document["name"]),
    )


def _json_schema(written: Mapping[str, Any]) -> dict[str, Any]:
    """The package writes Python's names of types, and `any` for no type at all."""
    kind = written.get("type")
    schema = {key: written[key] for key in _SCHEMA_KEYS if key in written}
    if kind not in (None, "any"):
        schema["type"] = _JSON_TYPES.get(kind, kind)
    if "properties" in written:
        schema["properties"] = {name: _json_schema(value) for name, value in written["properties"].items()}
        schema["required"] = list(written.get("required", ()))
    if "items" in written:
        schema["items"] = _json_schema(written["items"])
    return schema


@functools.cache
def _documents(system: System) -> list[dict[str, Any]]:
    return list(_rows(_data(f"multi_turn_func_doc/{DOCUMENTS[system]}.json")))


def _data(pattern: str) -> Path:
    import bfcl_eval

    folder = Path(bfcl_eval.__file__).parent / "data"
    found = sorted(folder.glob(pattern))
    if not found:
        raise ConfigError(f"the installed bfcl-eval has no {folder / pattern}; install 2026.3.23")
    return found[-1]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
