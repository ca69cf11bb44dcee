"""Wheel and source distribution: they hold what they must and nothing else, and the command runs from a clean place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY

PACKAGES = ("agentfly_lib", "flows", "tasks")
SUPPORTED = ("3.11", "3.12", "3.13")


def run(*command: object, **options) -> str:
    options = {"cwd": REPOSITORY, "timeout": 240} | options
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built of what is in the tree."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("agentfly_lib-*-py3-none-any.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (found,) = built.glob("agentfly_lib-*.tar.gz")
    return found


def tracked(*folders: str) -> set[str]:
    """Files of the repository that git knows; of the tree itself where there is no git."""
    if (REPOSITORY / ".git").exists():
        return set(run("git", "ls-files", "--", *folders).split("\n")) - {""}
    found = (path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(REPOSITORY)) for path in found if "__pycache__" not in path.parts}


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = {name for name in tracked(*PACKAGES) - names if (REPOSITORY / name).exists()}
    assert missing == set()
    assert {
        "agentfly_lib/py.typed",
        "agentfly_lib/chat/templates/qwen2.5.jinja",
        "agentfly_lib/viewer/web/templates/base.html",
        "agentfly_lib/resources/seccomp.py",
        "agentfly_lib/resources/workspace_program.py",
        "agentfly_lib/tools/interpreter_program.py",
        "flows/train.py",
        "tasks/collect.py",
    } <= names


def test_the_wheel_holds_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".arrow", ".safetensors"))] == []
    assert wheel.stat().st_size < 2_000_000


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    info = f"{wheel.name.split('-py3')[0]}.dist-info"
    points = archive.read(f"{info}/entry_points.txt").decode()
    assert "agentfly = agentfly_lib.cli:main" in points
    assert "train = flows.train:train" in points
    metadata = archive.read(f"{info}/METADATA").decode()
    assert re.search(r"^Requires-Python: <3\.14,>=3\.11$", metadata, re.MULTILINE)
    assert re.search(r"^License-Expression: Apache-2\.0$", metadata, re.MULTILINE)
    assert {f"Classifier: Programming Language :: Python :: {version}" for version in SUPPORTED} <= set(
        metadata.splitlines()
    )
    assert f"{info}/licenses/LICENSE" in archive.namelist()


def test_the_source_distribution_builds_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    assert {"recipes", "tests", "docs", "README.md", "LICENSE", "CHANGELOG.md", "mkdocs.yml", "Makefile"} <= {
        path.name for path in root.iterdir()
    }
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path / "dist", cwd=root)
    again = zipfile.ZipFile(tmp_path / "dist" / wheel.name)
    assert set(again.namelist()) == set(zipfile.ZipFile(wheel).namelist())


def interpreters() -> Iterator[tuple[str, Path]]:
    """Supported Pythons on this machine."""
    for version in SUPPORTED:
        homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        candidates = [shutil.which(f"python{version}"), *map(str, reversed(homes))]
        for candidate in filter(None, candidates):
            done = subprocess.run([candidate, "-c", "import venv"], capture_output=True, timeout=60, check=False)
            if done.returncode == 0:
                yield version, Path(candidate)
                break


INTERPRETERS = dict(interpreters())


@pytest.mark.parametrize("version", SUPPORTED)
def test_it_installs_into_an_empty_environment(version, wheel, tmp_path):
    """Without what it needs, which `make test-python` installs: every module is Python of this version."""
    if version not in INTERPRETERS:
        pytest.skip(f"there is no Python {version} on this machine")
    home = environment(INTERPRETERS[version], wheel, tmp_path)
    (packages,) = (home / "lib").glob("python3*/site-packages")
    run(home / "bin" / "python", "-m", "compileall", "-q", *(packages / name for name in PACKAGES), cwd=tmp_path)
    program = "from importlib.metadata import version; print(version('agentfly-lib'))"
    assert run(home / "bin" / "python", "-c", program, cwd=tmp_path).strip() == wheel.name.split("-")[1]


def test_the_command_runs_from_a_clean_place(wheel, tmp_path):
    """In an environment of its own, which has what it needs from this one, and not the working tree."""
    home = environment(Path(sys.executable), wheel, tmp_path)
    (packages,) = (home / "lib").glob("python3*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    agentfly = home / "bin" / "agentfly"
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = "import agentfly_lib, flows, tasks; print(agentfly_lib.__file__)"
    assert run(home / "bin" / "python", "-c", where, cwd=tmp_path, env=clean).startswith(str(home))
    assert "Usage: agentfly" in run(agentfly, "--help", cwd=tmp_path, env=clean)
    assert "--rehearsal" in run(agentfly, "doctor", "--help", cwd=tmp_path, env=clean)
    shutil.copy(REPOSITORY / "recipes" / "demo.toml", tmp_path)
    assert 'name = "demo"' in run(agentfly, "config", "check", "demo.toml", cwd=tmp_path, env=clean)
    program = (
        "from importlib.metadata import entry_points\n"
        "from importlib.util import find_spec\n"
        "points = {point.name: point.value for point in entry_points(group='agentfly.flows')}\n"
        "assert all(find_spec(value.split(':')[0]) for value in points.values()) and 'train' in points, points\n"
    )
    run(home / "bin" / "python", "-c", program, cwd=tmp_path, env=clean)


def environment(python: Path, wheel: Path, folder: Path) -> Path:
    """A new virtual environment that holds the wheel alone."""
    home = folder / "environment"
    run(python, "-m", "venv", "--without-pip", home)
    uv = Path(sys.executable).with_name("uv")
    installer = [uv, "pip", "install", "--python", home / "bin" / "python"] if uv.exists() else None
    if installer is None:
        pytest.skip("uv is not beside this Python: make setup")
    run(*installer, "--quiet", "--offline", "--no-deps", wheel)
    return home
