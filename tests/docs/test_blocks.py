"""Every Python block of the README and of docs/ runs; every shell block runs too, or says why it does not.

Blocks of a page run in one folder. A block with a title is a file of that folder (`title="my_agents/tools.py"`); beside
them lie `recipes`, and in `runs/demo` a finished run of three steps.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentfly_lib.configs import load_config
from agentfly_lib.preflight import check_run
from tests.docs.pages import PAGES, REPOSITORY, Block, blocks_of, page_name
from tests.docs.run_page import run_page

SHELL = ("bash", "sh", "console")
COMMANDS_OF_CI = ("make demo", "make test", "make check", "make setup")
"""Run by .ci/run or, for the demo, by hand before a release: they would run themselves here."""
MADE_WHILE_THE_SITE_IS_BUILT = re.compile(r"docs/(reference/.*|changelog|decisions/index)\.md")
FINISHED_RUN = REPOSITORY / "tests" / "store" / "golden" / "version-1" / "run"


def with_blocks(*languages: str) -> list:
    """Pages that have blocks to run in these languages."""
    return [
        pytest.param(page, id=page_name(page))
        for page in PAGES
        if any(block.language in languages and not block.title for block in blocks_of(page))
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a page's blocks run."""
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    shutil.copytree(FINISHED_RUN, tmp_path / "runs" / "demo")
    return tmp_path


def write_files(page: Path, folder: Path) -> list[Path]:
    """The blocks that are files; a later one of the same name replaces the earlier one."""
    written = []
    for block in blocks_of(page):
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            written.append(path)
    return written


@pytest.mark.stack
@pytest.mark.parametrize("page", with_blocks("python"))
def test_python(page: Path, folder: Path) -> None:
    write_files(page, folder)
    scripts = []
    for block in blocks_of(page):
        if block.language == "python" and not block.title:
            scripts.append(folder / f"line_{block.line}.py")
            scripts[-1].write_text(block.text)
    faults = run_page(scripts, folder, seconds=240)
    assert list(faults) == [script.name for script in scripts], "the process has ended before the page"
    assert not any(faults.values()), "\n".join(filter(None, faults.values()))


@pytest.mark.parametrize("page", with_blocks(*SHELL))
def test_shell(page: Path, folder: Path) -> None:
    is_a_folder = bool(write_files(page, folder))
    for block in blocks_of(page):
        if block.language not in SHELL:
            continue
        if block.note:
            assert block.note.startswith("<!-- not run here: "), f"line {block.line}: say why the block is not run"
            continue
        for command in commands_of(block):
            if command in COMMANDS_OF_CI:
                continue
            assert is_a_folder, f"line {block.line}: {command!r} is neither run by the tests nor marked"
            program, *arguments = shlex.split(command)
            assert program == "agentfly", f"line {block.line}: only agentfly is run in the folder of a page"
            done = subprocess.run(
                [sys.executable, "-m", "agentfly_lib", *arguments],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"line {block.line}: {command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def commands_of(block: Block) -> list[str]:
    lines = [line.split("#")[0].strip() for line in block.text.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page_name(page)) for page in PAGES if any(b.title for b in blocks_of(page))]
)
def test_recipes_can_be_used(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page gives as a recipe names things that are there."""
    files = write_files(page, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    recipes = [path for path in files if path.suffix == ".toml" and "[run]" in path.read_text()]
    assert recipes
    for path in files:
        if path.name == "make_data.py":
            runpy.run_path(str(path))
    for recipe in recipes:
        check_run(load_config(recipe))
    for name in set(sys.modules) - before:  # another page has other modules of these names
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def test_a_replay_starts_where_its_recipe_keeps_a_checkpoint() -> None:
    asked = re.findall(r"agentfly replay runs/(\S+) --from-step (\d+)", "\n".join(page.read_text() for page in PAGES))
    assert asked
    for name, step in asked:
        config = load_config(REPOSITORY / "recipes" / f"{name}.toml")
        last, every = config.run.steps, config.checkpoint.every_steps
        saved = sorted({*range(every, last, every), last})
        assert int(step) in saved[-config.checkpoint.keep_last :]
        assert int(step) < last


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        path = (page.parent / target).resolve()
        made = MADE_WHILE_THE_SITE_IS_BUILT.fullmatch(str(path.relative_to(REPOSITORY)))
        assert path.exists() or made, f"{page.name} links to {target}, which is not there"
