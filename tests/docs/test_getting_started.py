"""The commands of the page for newcomers: those that read a finished run are run, the others are understood.

`make walkthrough` follows the whole page in a fresh clone.
"""

from __future__ import annotations

import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentfly_lib.cli import app
from agentfly_lib.configs import load_config
from docs.hooks.command_reference import commands
from tests.docs.pages import REPOSITORY, blocks_of
from tests.docs.test_blocks import FINISHED_RUN

PAGE = REPOSITORY / "docs" / "getting-started.md"
COMMANDS = [
    line.split("#")[0].strip()
    for block in blocks_of(PAGE)
    if block.language == "bash"
    for line in block.text.splitlines()
    if line.startswith("agentfly ")
]
READING = ("show", "ledger", "runs")


def test_the_page_shows_what_a_newcomer_needs():
    assert {command.split()[1] for command in COMMANDS} >= {"train", "show", "ledger", "view", "evaluate", "export"}


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.split()[1] in READING])
def test_commands_that_read_a_run(command, tmp_path, monkeypatch):
    shutil.copytree(FINISHED_RUN, tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    assert done.output.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_their_options_are_there(command):
    known = dict(commands())
    name, *arguments = shlex.split(command)[1:]
    parameters = known[f"agentfly {name}"].params
    options = {option for parameter in parameters for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options
    overrides = [value for flag, value in pairwise(arguments) if flag == "--set"]
    recipe = next((argument for argument in arguments if argument.startswith("recipes/")), None)
    if recipe:
        load_config(REPOSITORY / Path(recipe), overrides)
