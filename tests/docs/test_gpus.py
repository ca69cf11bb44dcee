"""The commands of the page for machines with GPUs, which none of our own checks has: all that they name is there."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import pytest

from agentfly_lib.configs import load_config
from agentfly_lib.preflight import data_files
from docs.hooks.command_reference import commands
from tests.docs.pages import REPOSITORY, blocks_of

PAGE = REPOSITORY / "docs" / "gpus.md"
LINES = [
    line.split(" #")[0].strip()
    for block in blocks_of(PAGE)
    if block.language == "bash"
    for line in block.text.replace("\\\n", " ").splitlines()
]
COMMANDS = [line for line in LINES if line.startswith("agentfly ")]
RECIPE = "recipes/gsm8k-8gpu.toml"


def test_the_way_is_whole() -> None:
    assert [command.split()[1] for command in COMMANDS[:4]] == ["plan", "doctor", "train", "top"]
    assert COMMANDS[2] == f"agentfly train {RECIPE}"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_options_and_keys_are_there(command: str) -> None:
    name, *arguments = shlex.split(command)[1:]
    parameters = dict(commands())[f"agentfly {name}"].params
    options = {option for parameter in parameters for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options
    load_config(REPOSITORY / RECIPE, [value for flag, value in pairwise(arguments) if flag == "--set"])


def test_files_and_folders_are_those_of_the_recipe() -> None:
    config = load_config(REPOSITORY / RECIPE)
    fetched = [match[1] for line in LINES if (match := re.search(r"--output (\S+)", line))]
    assert fetched == [str(file) for file in data_files(config).values()]
    assert f"hf download {config.model.name_or_path}" in LINES
    runs = {word for line in COMMANDS for word in line.split() if word.startswith("runs/")}
    assert runs == {f"{config.run.directory}", f"{config.run.directory}/checkpoints/{config.run.steps:06d}"}


def test_the_image_is_the_one_that_is_built() -> None:
    images = {word for line in LINES for word in line.split() if word.startswith("agentfly/")}
    files = [word for line in LINES for word in line.split() if word.endswith(".Dockerfile")]
    assert images == {"agentfly/worker-gpu:0.1.0"}
    assert [(REPOSITORY / file).exists() for file in files] == [True]
