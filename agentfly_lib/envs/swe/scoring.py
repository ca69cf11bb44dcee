"""Judging work: what was changed is put into a fresh copy of the repository, with the hidden tests, and they are run.

Nothing else crosses from the policy's copy: no process that it has left, no test or configuration of the test runner
that it has changed, nothing outside the repository. All its processes are ended before its files are read, and what is
read is checked here, because in a container even the interpreter that reads them can be of the policy's making.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentfly_lib.envs.swe.inside_program import Refused, inside, is_protected
from agentfly_lib.envs.swe.tasks import SweProblem, SweSettings
from agentfly_lib.envs.swe.workspace import Answer, Workspace
from agentfly_lib.errors import SandboxError

__all__ = ["Verdict", "checked_work", "judge", "outcomes_of", "work_done"]

MAX_WORK_BYTES = 8 << 20
_FILE_SECONDS = 60.0
_LOG_BYTES = 1 << 24

_PYTEST = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S+?)(?: - .*)?$", re.MULTILINE)
_UNITTEST = re.compile(r"^(\w+ \([\w.]+\))[^\n]*?(?:\n[^\n]*)? \.\.\. (ok|FAIL|ERROR|skipped)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the tests said."""

    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    reason: str = ""
    """Why it could not be judged by tests: then it is not solved."""

    @property
    def solved(self) -> bool:
        """All tests that must pass do."""
        return not self.reason and not self.failed and bool(self.passed)


def work_done(workspace: Workspace, problem: SweProblem, before: Mapping[str, str]) -> dict[str, Any]:
    """The changes of a workspace since the state `before`, as `judge` takes them. Ends all that runs in it.

    Raises `Answer`.
    """
    workspace.quieten()
    found = workspace.ask(
        "changes",
        seconds=_FILE_SECONDS,
        before=before,
        protected=problem.protected,
        max_bytes=MAX_WORK_BYTES,
    )
    return checked_work(found, problem.protected)


def checked_work(told: Mapping[str, Any], protected: Sequence[str]) -> dict[str, Any]:
    """Of changes that were told, those that a policy may decide about. Raises `Answer` for what is no work."""
    changed, deleted = told.get("changed"), told.get("deleted")
    if not isinstance(changed, dict) or not isinstance(deleted, list):
        raise Answer("what was changed is no list of files")
    size = 0
    for path in (*changed, *deleted):
        try:
            inside(path)
            path.encode()
        except (Refused, AttributeError, UnicodeEncodeError) as error:
            raise Answer(f"{str(path)[:200]!r} cannot be a file of the repository") from error
    work = {path: entry for path, entry in changed.items() if not is_protected(path, protected)}
    for path, entry in work.items():
        try:
            mode, content = entry
            work[path] = [int(mode) & 0o777, content]
            size += len(base64.b64decode(content, validate=True))
        except (TypeError, ValueError, OverflowError, binascii.Error) as error:
            raise Answer(f"what was told of {path[:200]!r} is no file") from error
    if size > MAX_WORK_BYTES:
        raise Answer(f"what was changed has more than {MAX_WORK_BYTES} bytes")
    return {"changed": work, "deleted": sorted({path for path in deleted if not is_protected(path, protected)})}


def judge(fresh: Workspace, problem: SweProblem, settings: SweSettings, work: Mapping[str, Any]) -> Verdict:
    """Puts the work into a fresh workspace and runs the tests there. Never raises `Answer`: that is a verdict too.

    So is a sandbox that dies as the tests run, since they run the policy's code.
    """
    try:
        fresh.ask("apply", seconds=_FILE_SECONDS, **work)
    except Answer as error:
        return Verdict(failed=problem.tests, reason=f"the changes cannot be applied: {error}")
    if problem.test_patch:
        done = fresh.shell(
            "git apply --whitespace=nowarn -", stdin=problem.test_patch, seconds=_FILE_SECONDS, max_bytes=1 << 12
        )
        if done.exit_code != 0:
            return Verdict(failed=problem.tests, reason=f"the test patch does not apply: {done.stderr[-300:]}")
    try:
        passed = _tested(fresh, problem, settings)
    except (Answer, SandboxError) as error:
        return Verdict(failed=problem.tests, reason=str(error)[-1000:])
    return Verdict(
        passed=tuple(name for name in problem.tests if passed.get(name)),
        failed=tuple(name for name in problem.tests if not passed.get(name)),
    )


def outcomes_of(log: str, tests: Sequence[str]) -> dict[str, bool]:
    """Which of the tests a log says to have passed, and nowhere not to have."""
    said: dict[str, bool] = {}
    found = [(name, outcome in ("PASSED", "XFAIL")) for outcome, name in _PYTEST.findall(log)]
    found += [(name, outcome == "ok") for name, outcome in _UNITTEST.findall(log)]
    for name, fine in found:
        for known in {name, ".".join(name.split("::")[1:])}:  # R2E-Gym leaves the file out
            said[known] = fine and said.get(known, True)
    return {name: said.get(name, False) for name in tests}


def _tested(fresh: Workspace, problem: SweProblem, settings: SweSettings) -> Mapping[str, bool]:
    if problem.test_command is None:
        answer = fresh.ask("test", seconds=settings.test_seconds, runner=problem.test_runner, tests=problem.tests)
        passed = answer.get("passed")
        if not isinstance(passed, dict):
            raise Answer("the tests ended without an answer")
        return {name: outcome is True for name, outcome in passed.items()}
    done = fresh.shell(f"{problem.test_command}\n", seconds=settings.test_seconds, max_bytes=_LOG_BYTES)
    if done.timed_out:
        raise Answer(f"the tests took longer than {settings.test_seconds:g} s and were stopped")
    return outcomes_of(f"{done.stdout}\n{done.stderr}", problem.tests)
