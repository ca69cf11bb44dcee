"""The schema that models read says exactly what is accepted."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pytest
from pydantic import BaseModel, Field

from agentfly_lib.errors import ConfigError
from agentfly_lib.tools import Tool, ToolContext, tool
from agentfly_lib.tools.schema import ArgumentError


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@dataclass
class Place:
    city: str
    zip_code: str | None = None


class Window(BaseModel):
    start: int = Field(ge=0, description="first day")
    title: str = ""


@tool
def weather(
    city: str,
    days: int = 1,
    unit: Unit = Unit.CELSIUS,
    detail: Literal["low", "high"] = "low",
    near: Optional[Place] = None,  # noqa: UP045
    ids: "list[int] | None" = None,  # noqa: UP037
    options: dict[str, float] = {},  # noqa: B006
    window: Window | None = None,
    limit: Annotated[int, Field(le=10)] = 5,
    *,
    context: ToolContext,
) -> str:
    """Weather of a city.

    It may be wrong.

    Args:
        city: Its name.
        days (int): How many days.

    Returns:
        A text.
    """
    return city


PROPERTIES = weather.parameters["properties"]


def errors(arguments: Mapping[str, Any], of=weather) -> str:
    with pytest.raises(ArgumentError) as caught:
        of.arguments.validate(arguments)
    return str(caught.value)


class TestSchema:
    def test_is_a_valid_json_schema(self):
        jsonschema.Draft202012Validator.check_schema(weather.parameters)

    def test_worked_example(self):
        @tool
        def add(a: int, b: float = 2.5) -> float:
            """Add two numbers.

            Args:
                a: the first
            """
            return a + b

        assert add.schema == {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Add two numbers.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "integer", "description": "the first"},
                        "b": {"type": "number", "default": 2.5},
                    },
                    "required": ["a"],
                    "additionalProperties": False,
                },
            },
        }

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("default", [float("inf"), float("nan"), object()])
    def test_a_default_that_json_cannot_say_is_left_out(self, default):
        def act(x: float = default) -> None: ...

        assert tool(act).parameters["properties"] == {"x": {"type": "number"}}
        assert tool(act).parameters["required"] == []

    def test_required_is_what_has_no_default(self):
        assert weather.parameters["required"] == ["city"]

    def test_the_context_is_hidden(self):
        assert "context" not in PROPERTIES

    def test_kinds(self):
        assert PROPERTIES["city"] == {"type": "string", "description": "Its name."}
        assert PROPERTIES["days"] == {"type": "integer", "default": 1, "description": "How many days."}
        assert PROPERTIES["detail"] == {"enum": ["low", "high"], "type": "string", "default": "low"}
        assert PROPERTIES["ids"] == {
            "anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
            "default": None,
        }
        assert PROPERTIES["options"]["additionalProperties"] == {"type": "number"}
        assert PROPERTIES["limit"] == {"type": "integer", "maximum": 10, "default": 5}

    def test_enums_dataclasses_and_models_are_spelled_out(self):
        definitions = weather.parameters["$defs"]
        assert definitions["Unit"] == {"enum": ["C", "F"], "type": "string"}
        assert definitions["Place"]["required"] == ["city"]
        assert definitions["Window"]["properties"]["start"]["minimum"] == 0
        assert "title" in definitions["Window"]["properties"]

    def test_description_leaves_the_sections_out(self):
        assert weather.description == "Weather of a city.\n\nIt may be wrong."

    @pytest.mark.parametrize(
        "docstring",
        [
            "Do it.\n\nArgs:\n    x: how often",
            "Do it.\n\nParameters\n----------\nx : int\n    how often",
            "Do it.\n\n:param x: how often\n:type x: int",
        ],
    )
    def test_docstring_styles(self, docstring):
        def act(x: int) -> None: ...

        act.__doc__ = docstring
        made = tool(act)
        assert made.description == "Do it."
        assert made.parameters["properties"]["x"]["description"] == "how often"

    def test_callable_objects_and_partials(self):
        class Weather:
            """A service."""

            def __call__(self, city: str, days: "int | None" = None) -> str:  # noqa: UP037
                """Look it up.

                Args:
                    city: its name
                """
                return city

        def add(a: int, b: int = 2) -> int:
            """Add."""
            return a + b

        made = Tool(name="weather", function=Weather())
        assert made.description == "Look it up."
        assert made.parameters["properties"]["city"] == {"type": "string", "description": "its name"}
        assert made.parameters["properties"]["days"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
        made = tool(name="add")(functools.partial(add, b=3))
        assert made.description == "Add."
        assert made.parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer", "default": 3}}

    def test_no_annotations_no_docstring(self):
        schema = tool(name="f")(lambda x, y=3: x).parameters
        assert schema["properties"] == {"x": {}, "y": {"default": 3}}

    @pytest.mark.parametrize("name", ["schema", "json", "model_config", "_hidden", "copy", "validate", "type"])
    def test_any_name_can_be_an_argument(self, name):
        scope: dict[str, Any] = {}
        exec(f"def act({name}: int): return {name}", scope)
        made = tool(scope["act"])
        assert list(made.parameters["properties"]) == [name]
        assert made.arguments.validate({name: 3}) == {name: 3}


class TestValidation:
    def test_defaults_are_left_to_the_function(self):
        assert weather.arguments.validate({"city": "Ulm"}) == {"city": "Ulm"}

    def test_values_become_what_the_annotation_says(self):
        values = weather.arguments.validate(
            {"city": "Ulm", "days": "3", "unit": "F", "near": {"city": "Bonn"}, "window": {"start": 1}}
        )
        assert values == {
            "city": "Ulm",
            "days": 3,
            "unit": Unit.FAHRENHEIT,
            "near": Place("Bonn"),
            "window": Window(start=1),
        }

    def test_missing(self):
        assert errors({}) == "missing argument city, expected string"

    def test_unknown(self):
        assert errors({"city": "Ulm", "town": 1}).startswith("unknown argument town, expected city, days, unit")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"city": 3}, "argument city is 3, expected string"),
            ({"city": "Ulm", "days": "many"}, "argument days is 'many', expected integer"),
            ({"city": "Ulm", "unit": "K"}, "argument unit is 'K'"),
            ({"city": "Ulm", "detail": "mid"}, "argument detail is 'mid', expected one of ['low', 'high']"),
            ({"city": "Ulm", "ids": [1, "x"]}, "argument ids.1 is 'x'"),
            ({"city": "Ulm", "limit": 11}, "argument limit is 11, expected integer: Input should be less than"),
        ],
    )
    def test_wrong_value(self, arguments, message):
        assert message in errors(arguments)

    def test_all_culprits_are_named(self):
        text = errors({"days": "x", "town": 1})
        assert all(part in text for part in ("city", "days", "town"))

    def test_the_context_cannot_be_given(self):
        assert "unknown argument context" in errors({"city": "Ulm", "context": {}})

    def test_keyword_functions_take_more(self):
        @tool
        def act(a: int, **more: Any) -> None: ...

        assert act.parameters["additionalProperties"] is True
        assert act.arguments.validate({"a": 1, "b": 2}) == {"a": 1, "b": 2}


class TestRefusedSignatures:
    def test_positional_parameters(self):
        with pytest.raises(ConfigError, match=r"tool act: the parameter rest cannot be given by name"):
            _ = tool(_with_rest).schema

    def test_builtins_that_hide_their_signature(self):
        with pytest.raises(ConfigError, match="wrap it in a function"):
            _ = tool(name="f")(max).schema

    def test_types_without_a_schema(self):
        @tool
        def act(x: Nothing) -> None: ...

        with pytest.raises(ConfigError, match="tool act: its parameters cannot be described"):
            _ = act.schema

    def test_annotations_that_name_nothing(self):
        def act(x: int) -> None: ...

        act.__annotations__ = {"x": "Missing"}
        with pytest.raises(ConfigError, match=r"tool act: an annotation cannot be resolved.*Missing"):
            _ = tool(act).schema


class Nothing:
    pass


def _with_rest(*rest: int) -> None: ...


_with_rest.__name__ = "act"
