"""The tools that run in a sandbox do the same in a container as behind bubblewrap."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agentfly_lib.errors import ConfigError, SandboxUnavailableError
from agentfly_lib.resources import ProcessSpec, auto
from agentfly_lib.resources.auto import AutoSandboxSpec
from agentfly_lib.resources.docker import ContainerSpec
from agentfly_lib.tools import ToolCall, ToolContext, execute_calls
from agentfly_lib.tools.code_interpreter import code_interpreter
from agentfly_lib.tools.create_file import create_file
from agentfly_lib.tools.edit_file import edit_file
from agentfly_lib.tools.read_file import read_file
from agentfly_lib.tools.run_shell import RunShellSettings, run_shell
from agentfly_lib.types import Problem

STORY = [
    ("create_file", {"path": "a.py", "content": "print(6 * 7)\n"}),
    ("run_shell", {"command": "python3 a.py; case $0 in *bash) echo a good shell;; esac"}),
    ("edit_file", {"path": "a.py", "old": "6", "new": "5"}),
    ("read_file", {"path": "a.py"}),
    ("code_interpreter", {"code": "x = 1"}),
    ("code_interpreter", {"code": "x + 1, open('a.py').read()"}),
    ("code_interpreter", {"code": "while True: pass"}),
    ("code_interpreter", {"code": "x"}),
    ("run_shell", {"command": "exit 3"}),
]


async def play(**settings: Any) -> list[str]:
    """What the model sees of each call."""
    tools = {
        tool.name: tool.with_settings({"seconds": 3.0, **settings})
        for tool in (code_interpreter, create_file, edit_file, read_file, run_shell)
    }
    context = ToolContext(trajectory_id="0/0", group_id="0", problem=Problem(id="0", messages=()))
    try:
        seen = []
        for number, (name, arguments) in enumerate(STORY):
            call = ToolCall(id=str(number), name=name, arguments=arguments)
            (result,) = await execute_calls([call], tools, context, default_timeout=60, max_chars=2000)
            seen.append(result.observation)
        return seen
    finally:
        await context.resources.aclose()


@pytest.mark.container
async def test_a_container_shows_what_a_process_shows(sandboxes, container_image):
    in_process, in_container = await asyncio.gather(play(), play(sandbox="docker", image=container_image))
    assert in_container == in_process
    assert in_container[5] == "(2, 'print(5 * 7)\\n')"
    assert "longer than 3 s" in in_container[6]


@pytest.mark.container
async def test_auto_takes_a_container_where_there_is_an_engine(container_image):
    spec = RunShellSettings(sandbox="auto", image=container_image).spec
    assert isinstance(spec, AutoSandboxSpec)
    assert isinstance(await asyncio.to_thread(spec.chosen), ContainerSpec)


@pytest.fixture
def no_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    auto._has_containers.cache_clear()
    yield
    auto._has_containers.cache_clear()


async def test_auto_takes_a_process_where_there_is_none_and_says_so_once(no_engine, caplog):
    caplog.set_level(logging.INFO)
    spec = RunShellSettings(sandbox="auto").spec
    assert isinstance(spec, AutoSandboxSpec)
    for _ in range(3):
        assert isinstance(spec.chosen(), ProcessSpec)
    assert caplog.text.count("sandboxes are processes behind bubblewrap, not containers: no Docker engine answers") == 1


def test_docker_without_an_engine_is_refused_before_anything_runs(no_engine):
    with pytest.raises(SandboxUnavailableError, match="no Docker engine answers at unix://"):
        run_shell.with_settings({"sandbox": "docker"}).check()


def test_an_unknown_kind_is_named():
    with pytest.raises(ConfigError, match=r"tool_settings.run_shell.sandbox"):
        run_shell.with_settings({"sandbox": "podman"})
