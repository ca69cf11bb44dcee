"""What every Dockerfile keeps to: pinned, small, layered, nobody is root, its health can be asked; and it builds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentfly_lib.envs.registry import SHIPPED_ENVIRONMENTS

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGES = REPOSITORY / "deployments" / "images"
FILES = sorted(IMAGES.glob("*.Dockerfile"))
HANDED_OVER = re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
"""What a build gets to see."""
ENVIRONMENTS = sorted(set(SHIPPED_ENVIRONMENTS) - {"gymnasium", "openenv"})
"""Those two are made of packages of the user's own, and of a server that is there already."""


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile, as the stages of its instructions."""

    stages: list[list[Instruction]]

    @classmethod
    def read(cls, file: Path) -> Dockerfile:
        text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
        lines = [line.split(None, 1) for line in text.replace("\\\n", " ").splitlines() if line.strip()]
        stages: list[list[Instruction]] = []
        for word, rest in lines:
            if word == "FROM":
                stages.append([])
            stages[-1].append(Instruction(word, rest.strip()))
        return cls(stages)

    @property
    def last(self) -> list[Instruction]:
        """The stage that becomes the image."""
        return self.stages[-1]

    def all(self, word: str) -> list[str]:
        return [each.rest for stage in self.stages for each in stage if each.word == word]


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def dockerfile(file: Path) -> Dockerfile:
    return Dockerfile.read(file)


def test_there_is_one_for_each_environment_and_kind_of_worker() -> None:
    assert {file.stem for file in FILES} == {"worker-cpu", "worker-gpu", "sandbox", *ENVIRONMENTS}


def test_bases_and_packages_are_pinned(dockerfile: Dockerfile) -> None:
    for base in dockerfile.all("FROM"):
        assert re.match(r"(python:3\.11\.\d+-slim-bookworm|nvidia/cuda:[\d.]+-devel-ubuntu[\d.]+)( AS \w+)?$", base)
    for run in dockerfile.all("RUN"):
        for command in re.findall(r"pip (?:install|wheel) ([^&]*)", run):
            named = [word for word in command.split() if not word.startswith("-")]
            fixed = "-c constraints.txt" in command or "-r " in command or "/wheels/" in command
            for word in named:
                own = word.strip('"') == "." or word.strip('"').startswith(".[")  # bounds are in pyproject.toml
                assert fixed or own or "==" in word or word.startswith(("http", '"$')), word


def test_it_is_small(dockerfile: Dockerfile) -> None:
    for run in dockerfile.all("RUN"):
        if "apt-get install" in run:
            assert "--no-install-recommends" in run
            assert run.index("rm -rf /var/lib/apt/lists/*") > run.index("apt-get install")
    cached = [run for run in dockerfile.all("RUN") if "pip install" in run or "pip wheel" in run]
    assert all("--no-cache-dir" in run for run in cached) or "PIP_NO_CACHE_DIR=1" in " ".join(dockerfile.all("ENV"))


def test_what_changes_often_comes_last(dockerfile: Dockerfile) -> None:
    """A layer is built again when one before it changes: packages must not stand behind sources."""
    for stage in dockerfile.stages:
        sources = [place for place, each in enumerate(stage) if each.word == "COPY" and "agentfly_lib" in each.rest]
        locks = [place for place, each in enumerate(stage) if each.word == "RUN" and "-r requirements" in each.rest]
        locks += [place for place, each in enumerate(stage) if each.word == "RUN" and "-c constraints" in each.rest]
        assert not sources or all(place < min(sources) for place in locks)


def test_nobody_is_root(dockerfile: Dockerfile) -> None:
    words = [each.word for each in dockerfile.last]
    (user,) = [each.rest for each in dockerfile.last if each.word == "USER"]
    assert re.fullmatch(r"(10001|65534:65534)", user)
    assert "RUN" not in words[words.index("USER") :]


def test_its_health_can_be_asked(file: Path, dockerfile: Dockerfile) -> None:
    (health,) = [each.rest for each in dockerfile.last if each.word == "HEALTHCHECK"]
    if file.stem == "sandbox":
        assert health == "NONE"
        return
    assert re.search(r"--interval=\S+ --timeout=\S+ --start-period=\S+ --retries=\d+", health)
    command = json.loads(health.split("CMD", 1)[1])
    compile(command[-1], file.name, "exec")
    port = re.search(r"127\.0\.0\.1:(\d+)/health", command[-1])[1]
    if file.stem not in ("worker-cpu", "worker-gpu"):  # a worker's page of health is Prefect's own port
        assert [each.rest for each in dockerfile.last if each.word == "EXPOSE"] == [port]


def test_programs_are_named_as_lists(dockerfile: Dockerfile) -> None:
    """A shell in between would swallow the signals that end a container."""
    for each in dockerfile.last:
        if each.word in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(each.rest))


def test_what_is_copied_is_there(dockerfile: Dockerfile) -> None:
    for copied in dockerfile.all("COPY"):
        words = [word for word in copied.split() if not word.startswith("--")]
        if "--from" not in copied:
            assert all((REPOSITORY / source).exists() for source in words[:-1]), copied
            assert all(source.split("/")[0] in HANDED_OVER for source in words[:-1]), f"{copied}: see .dockerignore"


@pytest.mark.skipif(shutil.which("hadolint", path=str(Path(sys.executable).parent)) is None, reason="make check")
def test_the_linter_is_content(file: Path) -> None:
    program = Path(sys.executable).parent / "hadolint"
    found = subprocess.run(
        [program, "--config", IMAGES / ".hadolint.yaml", "--no-color", file],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environments_packages_are_enough_to_start_it(name: str) -> None:
    """What its server imports comes with the packages that its Dockerfile installs, and with what those require."""
    module = "agentfly_lib.envs.search.server" if name == "search" else "agentfly_lib.envs.host"
    program = (
        f"import sys, {module}, agentfly_lib.envs.serve\n"
        f"from agentfly_lib.envs.registry import get_environment\nget_environment({name!r})\n"
        "files = {name.split('.')[0]: str(getattr(module, '__file__', '')) for name, module in sys.modules.items()}\n"
        "print(*(name for name, file in files.items() if 'site-packages' in file))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"the packages of {name} are not installed (make envs): {done.stderr.splitlines()[-1]}")
    owners = packages_distributions()
    imported = {canonicalize_name(owner) for top in done.stdout.split() for owner in owners.get(top, ())}
    imported -= {"agentfly-lib", "setuptools", "pip"}
    assert imported <= packages_of(name), name


def packages_of(name: str) -> set[str]:
    """What an environment's Dockerfile installs, with what that requires."""
    dockerfile = Dockerfile.read(IMAGES / f"{name}.Dockerfile")
    named: set[str] = set()
    for run in dockerfile.all("RUN"):
        for pattern in re.findall(r"grep -E '\^\(([^)]*)\)==", run):
            named |= set(pattern.split("|"))
        for command in re.findall(r"pip install ([^&]*)", run):
            named |= {
                word for word in command.split() if re.fullmatch(r"[A-Za-z][\w.-]*", word) and word != "constraints.txt"
            }
    return _with_requirements({canonicalize_name(name) for name in named})


def _with_requirements(names: set[str]) -> set[str]:
    whole: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in whole:
            continue
        whole.add(name)
        try:
            needed = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:  # and neither is what it needs
            continue
        todo += [
            canonicalize_name(each.name)
            for each in needed
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return whole
