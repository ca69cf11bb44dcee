"""`@tool` on functions and methods, which stay what they were."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

import jsonschema
import pytest

from agentfly_lib.errors import ConfigError, SandboxUnavailableError
from agentfly_lib.tools import (
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    ToolSettings,
    calculator,
    execute_calls,
    get_tool,
    tool,
)
from agentfly_lib.tools.registry import SHIPPED_TOOLS
from agentfly_lib.types import Problem


@tool
def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@tool(name="slow_double", timeout=2.0, max_chars=10, finishes=True, retries=3, description="Doubles.")
async def double_later(x: int) -> int:
    """Not shown."""
    return 2 * x


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    @tool
    def add(self, by: int) -> int:
        """Count up."""
        self.count += by
        return self.count

    @tool
    @staticmethod
    def helper(x: int) -> int:
        return x

    @staticmethod
    @tool
    def other(x: int) -> int:
        return x


def test_a_tool_is_still_its_function():
    assert double(4) == 8
    assert double.__name__ == "double"
    assert double.__doc__ == "Double a number."
    assert asyncio.run(double_later(4)) == 8


def test_settings():
    assert (double.name, double.timeout, double.max_chars, double.finishes, double.retries) == (
        "double", None, None, False, 0,
    )  # fmt: skip
    made = double_later
    assert (made.name, made.timeout, made.max_chars, made.finishes, made.retries) == ("slow_double", 2.0, 10, True, 3)
    assert made.description == "Doubles."


def test_a_method_is_bound_to_the_instance_it_is_taken_from():
    one, two = Counter(0), Counter(10)
    assert one.add(by=5) == 5
    assert two.add(by=5) == 15
    assert list(one.add.parameters["properties"]) == ["by"]
    assert Counter.add.needs_instance
    assert not one.add.needs_instance


def test_static_methods():
    assert Counter.helper(3) == Counter.other(3) == Counter(0).helper(3) == 3


def test_class_methods_are_refused():
    with pytest.raises(ConfigError, match="class methods"):
        tool(classmethod(lambda cls: None))


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"max_chars": 0}, {"retries": -1}, {"name": "a b"}])
def test_settings_that_cannot_be(settings):
    with pytest.raises(ConfigError):
        tool(**settings)(lambda: None)


class WeightSettings(ToolSettings):
    unit: Literal["kg", "t"] = "kg"
    digits: int = 1


def make_weight(settings: WeightSettings) -> Tool:
    @tool(settings=settings, make=make_weight)
    def weight(animal: str) -> str:
        """How heavy an animal is."""
        return f"{animal}: {round(5.25, settings.digits)} {settings.unit}"

    return weight


weight = make_weight(WeightSettings())


class TestSettings:
    def test_make_another_tool_of_the_same_name(self):
        made = weight.with_settings({"unit": "t", "digits": 2})
        assert (made.name, made("elephant"), weight("cat")) == ("weight", "elephant: 5.25 t", "cat: 5.2 kg")
        assert made.schema == weight.schema

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"units": "t"}, "unknown key tool_settings.weight.units: did you mean unit?"),
            ({"zzz": 1}, "unknown key tool_settings.weight.zzz: valid keys: unit, digits"),
            ({"unit": "lb"}, r"tool_settings.weight.unit = 'lb'"),
            ({"digits": "x", "zzz": 1}, r"tool_settings.weight.digits = 'x'.*; unknown key tool_settings.weight.zzz"),
        ],
    )
    def test_wrong_ones_are_named(self, values, message):
        with pytest.raises(ConfigError, match=message):
            weight.with_settings(values)

    def test_a_tool_without_any(self):
        with pytest.raises(ConfigError, match="tool 'double' has no settings"):
            double.with_settings({"x": 1})

    def test_what_it_needs_is_asked_before_a_rollout(self, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
            get_tool("run_shell").check()


class TestFinishingTools:
    async def test_they_end_the_trajectory(self):
        context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))
        for name, given, shown, answer in (
            ("answer", {"answer": "42"}, "42", "42"),
            ("finish", {}, "Finished.", None),
        ):
            calls = [ToolCall(id="0", name=name, arguments=given)]
            (result,) = await execute_calls(calls, {name: get_tool(name)}, context, default_timeout=5, max_chars=99)
            assert result == ToolResult(observation=shown, finished=True, answer=answer)


class TestRegistry:
    @pytest.mark.parametrize("name", sorted(SHIPPED_TOOLS))
    def test_every_shipped_tool_is_found_and_described(self, name):
        found = get_tool(name)
        assert found.name == name
        assert found.description
        jsonschema.Draft202012Validator.check_schema(found.parameters)
        assert all(value.get("description") for value in found.parameters["properties"].values())

    def test_shipped(self):
        assert get_tool("calculator") is calculator

    def test_by_path(self, tmp_path, monkeypatch):
        (tmp_path / "my_tools_a.py").write_text(
            "from agentfly_lib.tools import tool\n@tool\ndef hi(x: int): return x\ndef plain(): pass\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        assert isinstance(get_tool("my_tools_a:hi"), Tool)
        with pytest.raises(ConfigError, match="put @tool on the function"):
            get_tool("my_tools_a:plain")
        with pytest.raises(ConfigError, match="has no hii; did you mean hi"):
            get_tool("my_tools_a:hii")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("calculater", "did you mean 'calculator'"),
            ("zzz", "calculator"),
            ("no.such.module:f", "cannot import no.such.module"),
            (":f", "write it as package.module:name"),
        ],
    )
    def test_unknown(self, name, message):
        with pytest.raises(ConfigError, match=message):
            get_tool(name)


def test_importing_tools_loads_nothing_heavy():
    code = (
        "import sys, agentfly_lib.tools; "
        "print([m for m in ('torch', 'vllm', 'ray', 'deepspeed', 'transformers') if m in sys.modules])"
    )
    import subprocess

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
