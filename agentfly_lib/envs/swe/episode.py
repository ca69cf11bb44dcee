"""An episode: work on a copy of the repository until it is submitted."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentfly_lib.envs.environment import StepResult
from agentfly_lib.envs.swe.actions import NoAction, read_action
from agentfly_lib.envs.swe.scoring import Verdict, judge, work_done
from agentfly_lib.envs.swe.tasks import SweProblem, SweSettings, archive_of, read_problem
from agentfly_lib.envs.swe.workspace import Answer, Workspace
from agentfly_lib.errors import DataError, EnvironmentFailure, RolloutError, SandboxError, UserError
from agentfly_lib.resources.process import PYTHON, WORKSPACE

__all__ = ["Swe"]

logger = logging.getLogger(__name__)

_COPY_SECONDS = 120.0
_FOLDER = f"{WORKSPACE}/repository"


@dataclass(frozen=True, slots=True)
class _Work:
    problem: SweProblem
    workspace: Workspace
    before: Mapping[str, str]
    """Digests of the repository's files as the episode began."""


class Swe:
    """Gives a repository to work on. See `Environment`; actions are what `actions.run_shell` and its like write.

    The reward is 1 when the work is submitted and all tests of the problem pass, and 0 in every other case.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = SweSettings(**settings)
        self._work: _Work | None = None

    def reset(self, problem: Mapping[str, Any]) -> str:
        """Lays out a fresh copy. Raises `DataError` for a problem that is none, or whose repository is not there."""
        self.close()
        read = read_problem(problem, self._settings, where=f"problem {problem.get('id')!r}")
        workspace = self._opened(read)
        try:
            before = workspace.ask("manifest", seconds=_COPY_SECONDS)["files"]
        except Answer as error:
            workspace.close()
            raise EnvironmentFailure(f"swe: {error}", where="environment:swe") from error
        except BaseException:
            workspace.close()
            raise
        self._work = _Work(read, workspace, before)
        return f"The repository is in {workspace.folder}: {len(before)} files."

    def step(self, action: str) -> StepResult:
        """Does one action; `submit` has the work judged and ends the episode."""
        work = self._work
        if work is None:
            raise RuntimeError("swe: there is no repository; call reset")
        try:
            name, arguments = read_action(action)
        except NoAction as fault:
            return StepResult(observation=f"Error: {fault}", error=str(fault))
        if name == "submit":
            return self._submit(work)
        try:
            if name == "run_shell":
                return self._shell(work.workspace, arguments["command"])
            text = work.workspace.work_on_files(name, arguments, seconds=self._settings.command_seconds)
        except Answer as error:
            return StepResult(observation=f"Error: {error}", error=str(error))
        except SandboxError as error:
            return self._ended(_lost(work, error))
        except (RolloutError, UserError):
            raise  # not of its making
        except Exception as error:  # What it said is its own making, and must not drop the episode.
            logger.warning("swe: an answer of the workspace cannot be read", exc_info=True)
            return self._ended(_lost(work, error))
        return StepResult(observation=text)

    def close(self) -> None:
        """Ends all that runs on the repository. A second call does nothing."""
        work, self._work = self._work, None
        if work is not None:
            work.workspace.close()

    def _shell(self, workspace: Workspace, command: str) -> StepResult:
        limits = self._settings
        done = workspace.shell(command, seconds=limits.command_seconds, max_bytes=limits.max_output_bytes)
        error = None
        if done.timed_out:
            error = f"The command ran longer than {limits.command_seconds:g} s and was stopped."
        elif done.exit_code != 0:
            error = f"The command {done.ending}."
        parts = [done.shown(), f"[{error}]" if error else ""]
        return StepResult(observation="\n".join(filter(None, parts)) or "(no output)", error=error)

    def _submit(self, work: _Work) -> StepResult:
        try:
            changes = work_done(work.workspace, work.problem, work.before)
        except Answer as error:
            verdict = Verdict(failed=work.problem.tests, reason=f"the changes cannot be read: {error}")
        except SandboxError as error:
            verdict = _lost(work, error)
        else:
            work.workspace.close()
            fresh = self._opened(work.problem)
            try:
                verdict = judge(fresh, work.problem, self._settings, changes)
            finally:
                fresh.close()
        return self._ended(verdict, "The work was submitted.")

    def _ended(self, verdict: Verdict, said: str | None = None) -> StepResult:
        self.close()
        info = {"passed": list(verdict.passed), "failed": list(verdict.failed), "reason": verdict.reason}
        observation = said or f"Error: {verdict.reason}"
        return StepResult(observation=observation, reward=float(verdict.solved), done=True, info=info)

    def _opened(self, problem: SweProblem) -> Workspace:
        """A workspace with the repository as the problem has it."""
        limits = self._settings
        if problem.image is None:
            archive = base64.b64encode(archive_of(problem)).decode()
            workspace = Workspace(limits.sandbox.open(), folder=_FOLDER, python=PYTHON)
            return _filled(workspace, "unpack", archive=archive)
        spec = limits.container(problem.image)
        spec.check()
        folder = limits.image_folder if limits.image_as_root else _FOLDER
        workspace = Workspace(spec.open(), folder=folder, python=limits.image_python)
        return workspace if limits.image_as_root else _filled(workspace, "copy", source=limits.image_folder)


def _lost(work: _Work, error: Exception) -> Verdict:
    """A workspace that the policy has brought down is its failure, and not ours: else it could drop what it fails."""
    return Verdict(failed=work.problem.tests, reason=f"the workspace is lost: {error}")


def _filled(workspace: Workspace, how: str, **source: str) -> Workspace:
    try:
        workspace.ask(how, seconds=_COPY_SECONDS, **source)
    except BaseException as error:
        workspace.close()
        if isinstance(error, Answer):
            raise DataError(f"the repository cannot be laid out: {error}") from error
        raise
    return workspace
