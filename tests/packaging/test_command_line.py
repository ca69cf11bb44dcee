"""`agentfly --help` at once, and what the shell offers after a Tab."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from agentfly_lib.configs.load import config_keys
from tests.docs.pages import REPOSITORY

AGENTFLY = Path(sys.executable).with_name("agentfly")
HEAVY = (
    "datasets", "deepspeed", "docker", "httpx", "jinja2", "matplotlib", "mlflow", "numpy", "pandas", "peft", "prefect",
    "pyarrow", "ray", "sqlalchemy", "starlette", "torch", "transformers", "vllm",
)  # fmt: skip


def cpu_seconds(*command: str) -> float:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return spent() - before


SMALLEST = """
import asyncio
import typer

app = typer.Typer()


@app.command()
def one() -> None:
    pass


@app.command()
def two() -> None:
    pass


app()
"""


def test_help_costs_less_than_that_of_the_smallest_typer_program(tmp_path: Path) -> None:
    """In processor time, which a busy machine stretches for both; the best of three."""
    program = tmp_path / "smallest.py"
    program.write_text(SMALLEST)
    smallest = min(cpu_seconds(sys.executable, str(program), "--help") for _ in range(3))
    assert min(cpu_seconds(str(AGENTFLY), "--help") for _ in range(3)) < smallest


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["doctor", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    shown, loaded = modules_after(arguments)
    assert "Usage: agentfly" in shown
    assert loaded & set(HEAVY) == set()


def test_a_config_is_checked_without_what_reads_shards_or_renders_conversations():
    _, loaded = modules_after(["config", "check", str(REPOSITORY / "recipes" / "demo.toml")])
    assert loaded & {*HEAVY, "aiohttp", "jinja2"} == {"numpy"}


def modules_after(arguments: list[str]) -> tuple[str, set[str]]:
    """What a command prints, and all modules that it has loaded at its end."""
    program = (
        "import json, sys\n"
        f"sys.argv = ['agentfly', *{arguments!r}]\n"
        "from agentfly_lib.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    *shown, loaded = done.stdout.splitlines()
    return "\n".join(shown), set(json.loads(loaded))


SHELLS = {
    "bash": lambda words: {"_AGENTFLY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": _last(words)},
    "zsh": lambda words: {"_AGENTFLY_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words},
    "fish": lambda words: {
        "_AGENTFLY_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": words,
    },
}


def _last(words: str) -> str:
    return str(len(words.split(" ")) - 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    for name in ("demo", "other", "not-a-run"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if name != "not-a-run":
            (tmp_path / "runs" / name / "config.toml").touch()
    (tmp_path / "mine.toml").touch()
    return tmp_path


def offered(shell: str, words: str, folder: Path) -> str:
    done = subprocess.run(
        [AGENTFLY], cwd=folder, env=os.environ | SHELLS[shell](words), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "expected", "absent"),
    [
        ("agentfly ev", ["evaluate"], ["train"]),
        ("agentfly train rec", ["recipes/demo.toml"], ["mine.toml"]),
        ("agentfly show runs/", ["runs/demo", "runs/other"], ["not-a-run/config"]),
        ("agentfly train recipes/demo.toml --set optim.l", ["optim.lr="], ["optim.eps"]),
    ],
)
def test_tab(shell, words, expected, absent, folder):
    text = offered(shell, words, folder)
    assert all(each in text for each in expected), text
    assert not any(each in text for each in absent), text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell(shell, folder):
    done = subprocess.run(
        [AGENTFLY, "--show-completion", shell], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "_AGENTFLY_COMPLETE" in done.stdout
    assert f"complete_{shell}" in done.stdout


def test_keys_are_those_of_a_recipe():
    assert "optim.lr" in config_keys()
    assert "algorithm.loss.clip_high" in config_keys()
