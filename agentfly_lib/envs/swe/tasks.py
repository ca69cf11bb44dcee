"""Problems: rows in the column format of SWE-bench and R2E-Gym, read and checked."""

from __future__ import annotations

import fnmatch
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from agentfly_lib.configs.base import Config
from agentfly_lib.envs.environment import EnvironmentSettings
from agentfly_lib.envs.swe.actions import ACTIONS, submit
from agentfly_lib.envs.swe.sample import sample_rows
from agentfly_lib.errors import ConfigError, DataError, SandboxUnavailableError
from agentfly_lib.resources import ProcessSpec
from agentfly_lib.resources.docker import ContainerSpec

__all__ = ["PROTECTED", "SweProblem", "SweSettings", "actions", "archive_of", "check", "problems", "read_problem"]

PROTECTED = (
    *("test", "tests", "testing", "test_*.py", "*_test.py", "conftest.py"),
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
    # What an interpreter or a test runner loads by itself, wherever they are installed.
    *("sitecustomize*", "usercustomize*", "*.pth", "*.egg-info", "*.dist-info"),
)
"""Files and folders of these names are not taken from the policy's copy: they are as the problem has them."""

_COLUMNS = ("repository", "image", "files", "test_patch", "fail_to_pass", "pass_to_pass", "test_runner", "test_command")
_PATCHED = re.compile(r"^(?:\+\+\+|---) [ab]/(.+?)(?:\t.*)?$", re.MULTILINE)
_SCRIPT = re.compile(r"(?<![\w./+-])[\w./+-]+\.(?:sh|bash|ini|cfg|toml)\b")
_LARGEST_ARCHIVE = 64 << 20
_LARGEST_REPOSITORY = 1 << 30

ActionName = Literal["run_shell", "list_files", "read_file", "create_file", "edit_file", "grep"]


class SweSettings(EnvironmentSettings):
    """Where the problems are, and what work on them may use up."""

    train: Path | None = None
    """Rows to train on, a JSONL or Parquet file; unset: a few small repositories that come with the program."""
    eval: Path | None = None
    """Rows to evaluate on; unset: others of those, or none if `train` is set."""
    repositories: tuple[Path, ...] = ()
    """Folders below which rows may name their repository. Those of `train` and `eval` are among them."""
    images: tuple[str, ...] = ()
    """Patterns of images that are pulled when rows name them, such as `swebench/sweb.eval.*`. Others must be there."""
    actions: tuple[ActionName, ...] = ("run_shell", "list_files", "read_file", "create_file", "edit_file", "grep")
    """The agent's tools, beside `submit`."""
    command_seconds: Annotated[float, Field(gt=0, le=300)] = 60.0
    """Limit of one command or file action."""
    test_seconds: Annotated[float, Field(gt=0, le=900)] = 300.0
    """Limit of all tests together. What is not done by then has not passed."""
    max_output_bytes: PositiveInt = 1 << 16
    """Of a command's standard output, and as many of standard error."""
    memory_mib: PositiveInt = 2048
    processes: PositiveInt = 128
    disk_mib: PositiveInt = 256
    """Size of the workspace where it is a sandbox's, in memory."""
    cpus: PositiveFloat = 1.0
    """Of a container."""
    packages: tuple[str, ...] = ()
    """Folders of Python packages (a `site-packages`) that sandboxes can import from, pytest for example."""
    image_folder: str = "/testbed"
    """Where images have the repository."""
    image_python: str = "python3"
    """The interpreter of images with which our own programs and the tests run; 3.9 or newer."""
    image_as_root: bool = False
    """Work in the image's own folder, as root in a container whose files can be changed: for packages that were
    installed from that folder, as in the images of SWE-bench. Else on a copy, as a user without privileges."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where repositories may lie. A row comes from strangers, and must not name any other folder of the machine."""
        return (*(path.parent for path in (self.train, self.eval) if path is not None), *self.repositories)

    @property
    def sandbox(self) -> ProcessSpec:
        """The sandbox of problems without an image."""
        return ProcessSpec(
            memory_mib=self.memory_mib,
            processes=self.processes,
            disk_mib=self.disk_mib,
            file_mib=self.disk_mib,
            cpu_seconds=int(self.command_seconds + self.test_seconds) + 1,
            read_only=self.packages,
            environment={"PYTHONPATH": ":".join(self.packages)} if self.packages else {},
        )

    def container(self, image: str) -> ContainerSpec:
        """The container of problems with an image."""
        return ContainerSpec(
            image=image,
            memory_mib=self.memory_mib,
            cpus=self.cpus,
            processes=self.processes,
            disk_mib=self.disk_mib,
            file_mib=self.disk_mib,
            python=self.image_python,
            pull=any(fnmatch.fnmatchcase(image, pattern) for pattern in self.images),
            user=0 if self.image_as_root else 65534,
            read_only=not self.image_as_root,
        )


class SweProblem(Config):
    """What `reset` needs of a problem."""

    repository: Path | None = None
    """A folder, or a tar file of one."""
    files: dict[str, str] | None = None
    """The same, written out: contents by path."""
    image: str | None = None
    """A container image that has it."""
    test_patch: str = ""
    """A unified diff that brings the hidden tests."""
    fail_to_pass: tuple[str, ...]
    """Tests that fail before the problem is solved."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that pass, and must go on to."""
    test_runner: Literal["pytest", "unittest"] = "pytest"
    test_command: str | None = None
    """Runs the tests in place of a runner; outcomes are read from what it prints, as `pytest -rA` and `unittest -v` do.
    Code under test can print such lines too."""

    @property
    def tests(self) -> tuple[str, ...]:
        """All that must pass."""
        return self.fail_to_pass + self.pass_to_pass

    @property
    def protected(self) -> tuple[str, ...]:
        """Patterns of files that the policy's copy does not decide about."""
        named = (name.split("::")[0] for name in self.tests if "::" in name)
        run = (word.removeprefix("./") for word in _SCRIPT.findall(self.test_command or ""))
        return tuple(dict.fromkeys((*PROTECTED, *_PATCHED.findall(self.test_patch), *named, *run)))


def actions(settings: SweSettings) -> list[Callable[..., str]]:
    """The agent's tools."""
    return [action for action in ACTIONS if action is submit or action.__name__ in settings.actions]


def check(settings: SweSettings) -> None:
    """Raises `UserError` if there is no sandbox here, or a file of problems is not there."""
    settings.sandbox.check()
    if shutil.which("git") is None:
        raise SandboxUnavailableError("the environment swe applies patches with git: `apt-get install git`")
    for path in (settings.train, settings.eval):
        if path is not None and not path.is_file():
            raise ConfigError(f"swe: there is no file {path} (looked from {Path.cwd()})")


def problems(settings: SweSettings, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """Rows with `question` (the problem's statement) and the columns that `reset` reads.

    Raises `DataError` naming the row that is no problem.
    """
    from agentfly_lib.rows import RowFault, read_rows  # loads pyarrow, which no episode needs

    if settings.train is None and settings.eval is None:
        yield from sample_rows(split)
        return
    path = settings.train if split == "train" else settings.eval
    if path is None:
        return
    for row in read_rows(path):
        if isinstance(row, RowFault):
            raise DataError(str(row))
        values = _in_our_words(row.values, where=row.where)
        if isinstance(values.get("repository"), str):
            values["repository"] = str(path.parent.resolve() / values["repository"])
        statement = values.get("problem_statement") or values.get("question")
        if not isinstance(statement, str) or not statement.strip():
            raise DataError(f"{row.where}: a problem needs its statement in the column problem_statement")
        read_problem(values, settings, where=row.where)
        kept = {name: values[name] for name in _COLUMNS if values.get(name) is not None}
        identity = values.get("instance_id") or values.get("id")
        yield {"question": statement} | kept | ({"id": str(identity)} if identity else {})


def read_problem(columns: Mapping[str, Any], settings: SweSettings, *, where: str) -> SweProblem:
    """Checks the columns of a problem. Raises `DataError`."""
    values = _in_our_words(columns, where=where)
    try:
        problem = SweProblem.model_validate({name: values[name] for name in _COLUMNS if values.get(name) is not None})
    except ValidationError as error:
        faults = "; ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors(include_url=False))
        raise DataError(f"{where} is not a problem of the environment swe: {faults}") from error
    if sum(source is not None for source in (problem.repository, problem.files, problem.image)) != 1:
        raise DataError(f"{where}: the repository comes from one of the columns repository, files and image")
    if not problem.fail_to_pass:
        raise DataError(f"{where}: FAIL_TO_PASS names no test, so there is nothing to judge by")
    if problem.repository is None:
        return problem
    return problem.model_copy(update={"repository": _allowed(problem.repository, settings.folders, where)})


def _allowed(path: Path, folders: Sequence[Path], where: str) -> Path:
    """The place that a row names, links followed, if it lies below one of the folders."""
    for folder in folders:
        root = folder.resolve()
        found = (root / path).resolve()
        if root in found.parents and not any(part.startswith(".") for part in found.relative_to(root).parts):
            if not found.exists():
                raise DataError(f"{where}: there is no repository at {found}")
            return found
    raise DataError(
        f"{where}: the repository {path} does not lie below the folder of `train` or `eval` or one of `repositories`, "
        "or is hidden there (settings of agent.environment, as of data)"
    )


def archive_of(problem: SweProblem) -> bytes:
    """The repository as a tar file, compressed or not. Raises `DataError` if it is too large to be copied."""
    if problem.repository is None or not problem.repository.is_file():
        return _packed(problem)
    with problem.repository.open("rb") as file:
        data = file.read(_LARGEST_ARCHIVE + 1)
    if len(data) > _LARGEST_ARCHIVE:
        raise _too_large(problem)
    return data


def _too_large(problem: SweProblem) -> DataError:
    return DataError(
        f"the repository {problem.repository or 'in files'} cannot be copied: it has more than "
        f"{_LARGEST_REPOSITORY >> 20} MiB, or {_LARGEST_ARCHIVE >> 20} as a tar file; use a compressed one, or an image"
    )


def _packed(problem: SweProblem) -> bytes:
    buffer = io.BytesIO()
    size = 0

    def counted(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        nonlocal size
        size += entry.size
        if size > _LARGEST_REPOSITORY or buffer.tell() > _LARGEST_ARCHIVE:
            raise _too_large(problem)
        return _anonymous(entry)

    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        if problem.repository is not None:
            tar.add(problem.repository, arcname=".", filter=counted)
        for path, content in (problem.files or {}).items():
            entry, data = tarfile.TarInfo(path), content.encode()
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    if buffer.tell() > _LARGEST_ARCHIVE:
        raise _too_large(problem)
    return buffer.getvalue()


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _in_our_words(columns: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Columns as SWE-bench and R2E-Gym name them, as ours; what is written as JSON is read. Raises `DataError`."""
    values = dict(columns)
    for theirs, ours in (("FAIL_TO_PASS", "fail_to_pass"), ("PASS_TO_PASS", "pass_to_pass")):
        found = values.pop(theirs, None)
        if ours not in values and found is not None:
            values[ours] = _listed(found)
    if "image" not in values and values.get("docker_image"):
        values["image"] = values["docker_image"]
    if "fail_to_pass" not in values and values.get("expected_output_json"):
        outcomes = _listed(values["expected_output_json"])
        if not isinstance(outcomes, dict):
            raise DataError(f"{where}: expected_output_json is not a JSON object of tests and their outcomes")
        values["fail_to_pass"] = [name for name, outcome in outcomes.items() if outcome == "PASSED"]
    return values


def _listed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
