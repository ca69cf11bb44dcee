"""SWE-style tasks: solutions are worth 1, everything else 0, and the policy cannot touch what judges it."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import shutil
import subprocess
import tarfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from unittest.mock import patch as patched

import pyarrow as pa
import pytest
from _pytest.config.findpaths import CONFIG_LOADERS_BY_NAME
from pyarrow import parquet

from agentfly_lib.envs.environment import Environment
from agentfly_lib.envs.swe import KIND, Swe, SweSettings
from agentfly_lib.envs.swe.actions import (
    create_file,
    edit_file,
    grep,
    list_files,
    read_file,
    run_shell,
    submit,
)
from agentfly_lib.envs.swe.inside_program import Refused, apply, is_protected
from agentfly_lib.envs.swe.sample import SampleProblem, sample_problems
from agentfly_lib.envs.swe.scoring import MAX_WORK_BYTES, outcomes_of, work_done
from agentfly_lib.envs.swe.tasks import PROTECTED, archive_of, check, problems, read_problem
from agentfly_lib.envs.swe.workspace import Answer, Workspace
from agentfly_lib.errors import AgentFlyError, ConfigError, DataError, SandboxError, UserError

CLAMP = sample_problems("train")[0].row()
SAMPLES = [*sample_problems("train"), *sample_problems("eval")]
ALL = [sample.row() for sample in SAMPLES]
SOLVED = "def clamp(value, low, high):\n    return max(low, min(value, high))\n"


@pytest.fixture(scope="module")
def environment() -> Iterator[Swe]:
    """Skips where no sandbox can be had, with what the library itself says about it."""
    environment = Swe(test_seconds=60)
    try:
        check(SweSettings())
        environment.reset(CLAMP)
    except UserError as error:
        pytest.skip(str(error))
    yield environment
    environment.close()


def patch(diff: str) -> str:
    return run_shell(f"git apply - <<'END_OF_PATCH'\n{diff}END_OF_PATCH\n")


def play(environment: Swe, problem: dict[str, Any], *actions: str) -> Any:
    """The result of submitting after these actions, all of which must go well."""
    environment.reset(problem)
    for action in actions:
        result = environment.step(action)
        assert result.error is None, result
        assert (result.reward, result.done) == (0.0, False)
    result = environment.step(submit())
    assert result.done
    return result


@pytest.mark.parametrize("number", [0, 5])
def test_the_solution_is_worth_one_and_nothing_is_worth_nothing(environment: Swe, number: int) -> None:
    problem = ALL[number]
    solved = play(environment, problem, patch(problem["patch"]))
    assert (solved.reward, solved.info["failed"]) == (1.0, [])
    untouched = play(environment, problem)
    assert (untouched.reward, untouched.info["passed"]) == (0.0, problem["pass_to_pass"])


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.name for sample in SAMPLES])
def test_samples_are_wrong_where_they_say(sample: SampleProblem) -> None:
    def passes(code: str, body: str) -> bool:
        names: dict[str, Any] = {"self": unittest.TestCase()}
        exec(code, names)
        try:
            exec(body, names)
        except (AssertionError, IndexError):
            return False
        return True

    broken = sample.code.replace(sample.right, sample.wrong)
    found = [passes(code, body) for code in (sample.code, broken) for body in (sample.shown, sample.hidden)]
    assert found == [True, True, True, False]


def test_what_worked_before_must_go_on_to(environment: Swe) -> None:
    broken = SOLVED.replace("max(low, ", "(")
    result = play(environment, CLAMP, create_file("clamp.py", broken, overwrite=True))
    assert (result.reward, result.info["failed"]) == (0.0, CLAMP["pass_to_pass"])


FORGED = "import os, sys\nprint('OK')\nos.write(1, b'{}')\nos._exit(0)\n"
ALWAYS = "import unittest\nclass TestClamp(unittest.TestCase):\n    test_usual = test_reported = lambda self: None\n"
CHEATS = {
    "edits the tests": [create_file("tests/test_clamp.py", ALWAYS, overwrite=True)],
    "deletes the tests": [run_shell("rm -r tests")],
    "links the tests elsewhere": [run_shell(f"cat > mine.py <<'E'\n{ALWAYS}E\nln -sf ../mine.py tests/test_clamp.py")],
    "exits when it is imported": [create_file("clamp.py", FORGED, overwrite=True)],
    "changes too much": [run_shell("head -c 9000000 /dev/zero > big")],
    "puts a file elsewhere": [run_shell("echo 1 > ../clamp.py; echo 1 > /tmp/clamp.py")],
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_policy_that_cheats_gets_nothing(environment: Swe, cheat: str) -> None:
    assert play(environment, CLAMP, *CHEATS[cheat]).reward == 0.0


class Forging(Workspace):
    """A workspace whose answers are the policy's own, as in a container where it has replaced the interpreter."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.done = answer, list[str]()

    def quieten(self) -> None:
        self.done.append("quieten")

    def ask(self, action: str, *, seconds: float, **arguments: Any) -> dict[str, Any]:
        self.done.append(action)
        return self.answer


def file(content: str = "forged", mode: Any = 0o4755) -> list[Any]:
    return [mode, base64.b64encode(content.encode()).decode()]


def test_what_a_policy_may_not_decide_about_does_not_cross_whoever_tells_it() -> None:
    problem = read_problem(CLAMP | {"test_patch": HIDDEN.replace("tests/", "checks/")}, SweSettings(), where="row")
    hidden = ("conftest.py", "tests/test_clamp.py", "deep/.pytest.ini", "checks/test_clamp.py", "sitecustomize.abi3.so")
    told = {name: file() for name in (*hidden, "clamp.py")}
    workspace = Forging(
        {"changed": told, "deleted": ["pyproject.toml", "old.py", "cheat-1.dist-info/entry_points.txt"]}
    )
    assert work_done(workspace, problem, {}) == {"changed": {"clamp.py": file(mode=0o755)}, "deleted": ["old.py"]}
    assert workspace.done == ["quieten", "changes"]  # nothing of the policy's runs beside it


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"changed": [], "deleted": []},
        {"changed": {}, "deleted": {}},
        {"changed": {}, "deleted": [3]},
        {"changed": {"../up.py": file()}, "deleted": []},
        {"changed": {"./pkg/check.py": file()}, "deleted": []},
        {"changed": {"pkg//check.py": file()}, "deleted": []},
        {"changed": {"/etc/passwd": file()}, "deleted": []},
        {"changed": {".git/config": file()}, "deleted": []},
        {"changed": {"\ud800": file()}, "deleted": []},
        {"changed": {"a.py": "content"}, "deleted": []},
        {"changed": {"a.py": [0o644, 3]}, "deleted": []},
        {"changed": {"a.py": [[], "YQ=="]}, "deleted": []},
        {
            "changed": {"a.py": file("x" * (MAX_WORK_BYTES // 2 + 1)), "b": file("x" * (MAX_WORK_BYTES // 2))},
            "deleted": [],
        },
    ],
    ids=lambda answer: str(answer)[:40],
)
def test_what_is_no_work_is_refused(answer: dict[str, Any]) -> None:
    problem = read_problem(CLAMP, SweSettings(), where="row")
    with pytest.raises(Answer):
        work_done(Forging(answer), problem, {})


def test_work_is_not_laid_down_through_links_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "helper.py").write_text("as it was")
    (tmp_path / "short").symlink_to("tests")
    (tmp_path / "alias.py").symlink_to("tests/helper.py")
    work = {"short/helper.py": file(mode=0o644), "alias.py": file(mode=0o600), "new/deep/a.py": file(mode=0o755)}
    apply(str(tmp_path), work, [])
    assert (tmp_path / "tests" / "helper.py").read_text() == "as it was"
    assert {name: (tmp_path / name).read_text() for name in work} == dict.fromkeys(work, "forged")
    assert (tmp_path / "new/deep/a.py").stat().st_mode & 0o777 == 0o755
    (tmp_path / "again").symlink_to("tests")
    with pytest.raises(OSError, match="again"):
        apply(str(tmp_path), {}, ["again/helper.py"])
    with pytest.raises(Refused):
        apply(str(tmp_path), {"../outside": file()}, [])


def test_every_configuration_that_pytest_reads_is_protected() -> None:
    assert [name for name in CONFIG_LOADERS_BY_NAME if not is_protected(f"deep/{name}", PROTECTED)] == []


@pytest.mark.parametrize("action", [run_shell("kill -9 -1"), submit()])
def test_a_workspace_that_the_policy_brings_down_is_its_failure(environment: Swe, action: str) -> None:
    """An episode that failed for reasons of ours would count for nothing, and so be better than one that is lost."""
    environment.reset(CLAMP)
    work = environment._work
    assert work is not None
    died = Mock(side_effect=SandboxError("the sandbox died, with all that was in it."))
    with patched.object(Workspace, "_run", died), patched.object(Workspace, "quieten", died):
        result = environment.step(action)
    assert (result.reward, result.done) == (0.0, True)
    assert result.info["reason"].startswith("the workspace is lost: the sandbox died")
    assert result.info["failed"] == list(work.problem.tests)


def test_what_nobody_can_read_is_the_failure_of_whoever_said_it(environment: Swe) -> None:
    environment.reset(CLAMP)
    with patched.object(Workspace, "_run", Mock(side_effect=ValueError("no signal 40"))):
        result = environment.step(run_shell("true"))
    assert (result.reward, result.done) == (0.0, True)
    assert environment.reset(CLAMP)
    result = environment.step(run_shell("kill -40 $$"))
    assert (result.done, result.error) == (False, "The command was killed by signal 40.")


def test_tests_that_do_not_end_are_stopped() -> None:
    environment = Swe(test_seconds=1)
    try:
        check(SweSettings())
        result = play(environment, CLAMP, create_file("clamp.py", "while True: pass\n", overwrite=True))
    except UserError as error:
        pytest.skip(str(error))
    finally:
        environment.close()
    assert result.reward == 0.0
    assert "longer than 1 s" in result.info["reason"]


def test_a_solution_counts_beside_changed_tests(environment: Swe) -> None:
    solved = create_file("clamp.py", SOLVED, overwrite=True)
    changed = create_file("tests/test_clamp.py", "syntax error", overwrite=True)
    more = create_file("tests/test_more.py", "also ignored(")
    own_unittest = create_file("unittest.py", "raise SystemExit(1)\n")
    assert play(environment, CLAMP, solved, changed, more, own_unittest).reward == 1.0


def test_the_tools_work_on_the_repository(environment: Swe) -> None:
    environment.reset(CLAMP)
    seen = {
        name: environment.step(action).observation
        for name, action in {
            "list": list_files(depth=1),
            "read": read_file("clamp.py", last_line=1),
            "grep": grep("def", "clamp.py"),
            "edit": edit_file("clamp.py", "max(low, value)", "max(low, min(value, high))"),
            "make": create_file("new/notes.txt", "one\ntwo\n"),
            "shell": run_shell("cat new/notes.txt; python3 -c 'from clamp import *; print(clamp(12, 0, 10))'; exit 3"),
        }.items()
    }
    assert "clamp.py" in seen["list"]
    assert seen["read"].startswith("1\tdef clamp(value, low, high):")
    assert "clamp.py:1:def clamp" in seen["grep"]
    assert "2\t    return max(low, min(value, high))" in seen["edit"]
    assert seen["make"] == "new/notes.txt was written: 2 lines."
    assert seen["shell"].startswith("one\ntwo\n10\n")
    assert "exit code 3" in seen["shell"]
    assert environment.step(submit()).reward == 1.0


HOSTILE = [
    "",
    "submit",
    "[" * 100_000,
    '{"name": "submit", "arguments": {"reward": 1}}',
    '{"name": "run_shell", "arguments": {"command": 3}}',
    json.dumps({"name": "run_shell", "arguments": {"command": "x" * (1 << 20)}}),
    json.dumps({"name": "run_shell", "arguments": {"command": "echo \x00\ud800"}}),
    json.dumps({"name": "read_file", "arguments": {"path": "\x00"}}),
    json.dumps({"name": "read_file", "arguments": {"path": "a" * 100_000}}),
    json.dumps({"name": "read_file", "arguments": {"path": "/etc/shadow"}}),
    json.dumps({"name": "grep", "arguments": {"pattern": "(" * 10_000}}),
    json.dumps({"name": "create_file", "arguments": {"path": "\ud800", "content": "\ud800"}}),
]


def test_what_cannot_be_done_is_an_error_for_the_model_and_the_episode_goes_on(environment: Swe) -> None:
    environment.reset(CLAMP)
    for action in HOSTILE:
        result = environment.step(action)
        assert result.error, action[:80]
        assert (result.reward, result.done) == (0.0, False)
    assert environment.step(run_shell("echo fine")).observation == "fine"


def test_an_episode_begins_with_a_fresh_copy_and_the_hidden_tests_are_not_in_it(environment: Swe) -> None:
    environment.reset(CLAMP)
    environment.step(run_shell("rm -r *; echo left > left"))
    environment.reset(CLAMP)
    listing = environment.step(run_shell("find . -type f | sort; grep -r reported . || true")).observation
    assert listing.split() == ["./clamp.py", "./tests/__init__.py", "./tests/test_clamp.py"]
    environment.step(submit())
    with pytest.raises(RuntimeError):
        environment.step(submit())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with a bug, and its tests as pytest takes them."""
    folder = tmp_path / "repository"
    (folder / "tests").mkdir(parents=True)
    (folder / "clamp.py").write_text(CLAMP["files"]["clamp.py"])
    (folder / "tests" / "test_clamp.py").write_text(
        "from clamp import clamp\n\ndef test_low():\n    assert clamp(-1, 0, 9) == 0\n"
    )
    return folder


@pytest.fixture
def pytest_alone(tmp_path: Path) -> Path:
    """A folder of packages with pytest and nothing that it would load as well."""
    packages = tmp_path / "packages"
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        shutil.copytree(Path(found.origin).parent, packages / name)
    return packages


HIDDEN = """\
--- a/tests/test_clamp.py
+++ b/tests/test_clamp.py
@@ -2,3 +2,6 @@

 def test_low():
     assert clamp(-1, 0, 9) == 0
+
+def test_high():
+    assert clamp(10, 0, 9) == 9
"""


def swe_bench_row(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "math__clamp-1",
        "repo": "math/clamp",
        "base_commit": "0" * 40,
        "problem_statement": "clamp(10, 0, 9) should be 9.",
        "patch": CLAMP["patch"],
        "test_patch": HIDDEN,
        "FAIL_TO_PASS": json.dumps(["tests/test_clamp.py::test_high"]),
        "PASS_TO_PASS": json.dumps(["tests/test_clamp.py::test_low"]),
    } | changes


def test_rows_of_swe_bench_over_a_folder_and_an_archive(
    environment: Swe, pytest_alone: Path, repository: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "repository.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(repository, arcname=".")
    table = tmp_path / "problems.jsonl"
    rows = [swe_bench_row(repository="repository"), swe_bench_row(repository=archive.name, instance_id="other")]
    table.write_text("\n".join(map(json.dumps, rows)))
    found = list(problems(SweSettings(train=table), "train"))
    assert [row["id"] for row in found] == ["math__clamp-1", "other"]
    assert found[0]["question"] == "clamp(10, 0, 9) should be 9."
    assert all("patch" not in row for row in found)
    with_pytest = Swe(packages=(str(pytest_alone),), train=table)
    try:
        folder, packed = found
        assert play(with_pytest, folder, patch(CLAMP["patch"])).reward == 1.0
        conftest = "import clamp\nclamp.clamp = lambda value, low, high: max(low, min(value, high))\n"
        assert play(with_pytest, packed, create_file("conftest.py", conftest)).reward == 0.0
    finally:
        with_pytest.close()


def test_rows_with_a_command_are_judged_by_what_it_prints(environment: Swe) -> None:
    row = CLAMP | {"test_command": "python3 -m unittest -v tests.test_clamp 2>&1"}
    row["fail_to_pass"] = ["test_reported (tests.test_clamp.TestClamp.test_reported)"]
    row["pass_to_pass"] = ["test_usual (tests.test_clamp.TestClamp.test_usual)"]
    assert play(environment, row, patch(CLAMP["patch"])).reward == 1.0
    assert play(environment, row).reward == 0.0


def test_rows_of_r2e_gym_name_an_image_and_the_outcomes() -> None:
    outcomes = {"TestClamp.test_high": "PASSED", "TestClamp.test_odd": "FAILED"}
    row = {
        "docker_image": "example/clamp:1",
        "problem_statement": "clamp(10, 0, 9) should be 9.",
        "expected_output_json": json.dumps(outcomes),
        "test_command": "bash run_tests.sh",
    }
    problem = read_problem(row, SweSettings(), where="row")
    assert (problem.image, problem.fail_to_pass) == ("example/clamp:1", ("TestClamp.test_high",))
    assert is_protected("run_tests.sh", problem.protected)
    assert not is_protected("bash", problem.protected)


LOG = """\
tests/test_clamp.py .F                                                    [100%]
=================================== short test summary info ====================
PASSED tests/test_clamp.py::TestClamp::test_low
PASSED tests/test_clamp.py::test_twice
FAILED tests/test_clamp.py::TestClamp::test_high - assert 10 == 9
FAILED tests/test_clamp.py::test_twice
test_add (tests.test_sum.TestSum) ... ok
test_odd (tests.test_sum.TestSum)
What it is about. ... FAIL
test_left (tests.test_sum.TestSum) ... skipped 'no reason'
"""


def test_outcomes_are_read_from_logs() -> None:
    names = {
        "tests/test_clamp.py::TestClamp::test_low": True,
        "TestClamp.test_low": True,
        "tests/test_clamp.py::TestClamp::test_high": False,
        "tests/test_clamp.py::test_twice": False,  # it is said to have failed, too
        "test_add (tests.test_sum.TestSum)": True,
        "test_odd (tests.test_sum.TestSum)": False,
        "test_left (tests.test_sum.TestSum)": False,
        "tests/test_clamp.py::test_missing": False,
    }
    assert outcomes_of(LOG, list(names)) == names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"FAIL_TO_PASS": "[]"}, "names no test"),
        ({"FAIL_TO_PASS": "test_high"}, "fail_to_pass"),
        ({"repository": "nowhere"}, "there is no repository at"),
        ({"repository": "/etc"}, "does not lie below"),
        ({"repository": "."}, "does not lie below"),
        ({"repository": "../"}, "does not lie below"),
        ({"repository": "out"}, "does not lie below"),
        ({"repository": ".ssh"}, "is hidden"),
        ({"repository": None}, "comes from one of"),
        ({"image": "example/clamp:1"}, "comes from one of"),
        ({"problem_statement": " "}, "problem_statement"),
        ({"test_runner": "nose"}, "test_runner"),
        ({"FAIL_TO_PASS": None, "expected_output_json": "[1"}, "expected_output_json is not a JSON object"),
        ({"FAIL_TO_PASS": "[" * 100_000}, "fail_to_pass"),
    ],
)
def test_rows_that_are_no_problem_are_named(
    repository: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    table = tmp_path / "problems.jsonl"
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    rows = [swe_bench_row(repository="repository"), swe_bench_row(repository="repository") | change]
    table.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=f"problems.jsonl line 2.*{message}"):
        list(problems(SweSettings(eval=table), "eval"))


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"[1]", "expected a JSON object"), (b"[" * 100_000, "nested too deeply"), (b'{"a": "\xff"}', "not UTF-8")],
)
def test_lines_that_are_no_row_are_named(tmp_path: Path, line: bytes, message: str) -> None:
    table = tmp_path / "problems.jsonl"
    table.write_bytes(b"\n" + line)
    with pytest.raises(DataError, match=f"problems.jsonl line 2: {message}"):
        list(problems(SweSettings(eval=table), "eval"))


def test_tables_are_read_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "problems.parquet"
    parquet.write_table(pa.table({"problem_statement": ["x" * 5000]}), table)
    monkeypatch.setattr("agentfly_lib.rows.unpacked.MAX_PIECE_BYTES", 1000)
    with pytest.raises(DataError, match=r"problems.parquet row 1 unpacks to \d+ bytes; the limit is 1000"):
        list(problems(SweSettings(eval=table), "eval"))
    table.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        list(problems(SweSettings(eval=table), "eval"))


def test_an_episode_takes_repositories_from_named_folders_only(repository: Path) -> None:
    """Its columns may come over HTTP, from whoever can reach the server."""
    row = swe_bench_row(repository=str(repository))
    with pytest.raises(DataError, match="does not lie below"):
        Swe().reset(row)
    allowed = SweSettings(repositories=(repository.parent,))
    assert read_problem(row, allowed, where="row").repository == repository


def test_a_repository_that_is_too_large_is_not_packed(repository: Path) -> None:
    with (repository / "sparse").open("wb") as hole:
        hole.truncate(1 << 40)
    problem = read_problem(
        swe_bench_row(repository="repository"), SweSettings(repositories=(repository.parent,)), where="row"
    )
    with pytest.raises(DataError, match="cannot be copied"):
        archive_of(problem)


def test_rows_cannot_have_any_image_pulled() -> None:
    settings = SweSettings(images=("swebench/sweb.eval.*",))
    assert settings.container("swebench/sweb.eval.x86_64.astropy-1:latest").pull
    assert not settings.container("evil.example/swebench/sweb.eval.x:1").pull
    assert not SweSettings().container("swebench/sweb.eval.x86_64.astropy-1:latest").pull


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.jsonl"):
        check(SweSettings(train=tmp_path / "missing.jsonl"))


def test_samples_have_no_solution_in_them() -> None:
    train, held_out = (list(KIND.problems(SweSettings(), split)) for split in ("train", "eval"))
    assert (len(train), len(held_out)) == (4, 2)
    assert all("patch" not in row for row in train + held_out)


def test_closing_ends_what_runs_and_a_second_time_does_nothing() -> None:
    environment = Swe()
    assert isinstance(environment, Environment)
    try:
        environment.reset(CLAMP)
    except UserError as error:
        pytest.skip(str(error))
    name = "agentfly-swe-left-behind"
    environment.step(run_shell(f"(exec -a {name} sleep 600) >/dev/null 2>&1 </dev/null & sleep 0.1"))
    environment.close()
    environment.close()
    assert name not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def repository_image(container_image: str) -> Iterator[str]:
    """An image with a repository in /testbed, made on top of this machine's files."""
    from agentfly_lib.resources.docker_engine import docker_engine

    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        test = CLAMP["files"]["tests/test_clamp.py"] + f"\n    def test_reported(self):\n        {SAMPLES[0].hidden}\n"
        contents = CLAMP["files"] | {"tests/test_clamp.py": test}
        contents = {f"testbed/{path}": content for path, content in contents.items()}
        for path, content in ({"Dockerfile": f"FROM {container_image}\nCOPY testbed /testbed\n"} | contents).items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content.encode()))
    context.seek(0)
    client = docker_engine().client
    image, _ = client.images.build(fileobj=context, custom_context=True, network_mode="none", rm=True, forcerm=True)
    yield str(image.id)
    client.images.remove(image.id, force=True)


@pytest.mark.container
@pytest.mark.parametrize("as_root", [False, True])
def test_a_repository_in_an_image(repository_image: str, as_root: bool) -> None:
    row = {name: CLAMP[name] for name in ("fail_to_pass", "pass_to_pass", "test_runner")} | {"image": repository_image}
    environment = Swe(image_as_root=as_root, memory_mib=256, disk_mib=32)
    try:
        environment.reset(row)
        environment.step(run_shell("kill -9 -1"))  # also what keeps the sandbox, if it can
        assert environment.step(run_shell("echo fine")).observation == "fine"
        solved = play(environment, row, edit_file("clamp.py", "max(low, value)", "max(low, min(value, high))"))
        assert (solved.reward, solved.info["failed"]) == (1.0, [])
        cheated = play(environment, row, create_file("tests/test_clamp.py", ALWAYS, overwrite=True))
        assert (cheated.reward, cheated.info["failed"]) == (0.0, CLAMP["fail_to_pass"])
    finally:
        environment.close()


@pytest.mark.container
def test_an_image_that_is_not_there_is_named(container_image: str) -> None:
    row = CLAMP | {"files": None, "image": "localhost:1/agentfly-test-missing:1"}
    for images, said in (((), "the settings do not allow pulling it"), (("localhost:1/*",), "cannot be pulled")):
        environment = Swe(images=images)
        with pytest.raises(AgentFlyError, match=f"localhost:1.*{said}"):
            environment.reset(row)
        environment.close()
