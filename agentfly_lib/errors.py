"""Every error the system raises on purpose. A message says what was wrong, where, and what to do next.

`UserError` is the user's to mend (a config, a file, a name): the command line prints it alone and exits 2.
`RolloutError` is caught at one place, the boundary of a chain, and becomes that trajectory's recorded failure.
"""

from __future__ import annotations

from agentfly_lib.endings import FailureKind

__all__ = [
    "AgentFlyError",
    "CanaryError",
    "ConfigError",
    "DataError",
    "EngineError",
    "EnvironmentFailure",
    "ImageError",
    "InfrastructureError",
    "LearnerError",
    "LedgerError",
    "ModelError",
    "PolicyError",
    "RewardError",
    "RolloutError",
    "RunLockedError",
    "SandboxError",
    "SandboxUnavailableError",
    "ShardError",
    "StageTimeout",
    "ToolError",
    "UserError",
    "described",
    "first_line",
]


class AgentFlyError(Exception):
    """Base of all our errors."""


class UserError(AgentFlyError):
    """Something the user can mend; the message says how."""


class ConfigError(UserError):
    """A config that cannot work: an unknown key, a wrong type, an impossible combination, a resume that differs."""


class DataError(UserError):
    """A dataset that cannot be used; names the file and the row."""


class ImageError(UserError):
    """A picture that cannot be used: damaged, too large, of an unknown kind, or not allowed to be read."""


class ModelError(UserError):
    """A model directory that cannot be used: no weights, no tokenizer, no chat template."""


class RunLockedError(UserError):
    """The run directory is in use by a living process."""


class SandboxUnavailableError(UserError):
    """This machine cannot run code in a sandbox; the message says what to install."""


class SandboxError(AgentFlyError):
    """A sandbox died, or could not do what was asked of it."""


class ShardError(AgentFlyError):
    """A file of the run directory is unreadable, truncated, of another version, or does not match its checksum."""


class LedgerError(AgentFlyError):
    """The balance problems x chains = scored + truncated + failed + dropped does not hold."""


class LearnerError(AgentFlyError):
    """The update cannot go on: non-finite loss, ranks that disagree, ranks that died or hang."""


class EngineError(AgentFlyError):
    """An inference engine died or cannot start."""


class CanaryError(EngineError):
    """After a weight update the engine does not serve the learner's weights."""


class StageTimeout(AgentFlyError):
    """A stage of the flow reached its limit."""


class RewardError(AgentFlyError):
    """A reward cannot be used as asked (unknown argument, a result that is no reward)."""


class RolloutError(AgentFlyError):
    """Ends one trajectory as failed; `kind` says who is to blame."""

    kind: FailureKind = FailureKind.INFRASTRUCTURE

    def __init__(self, message: str, *, where: str) -> None:
        super().__init__(message)
        self.where = where
        """Stage of the chain: `generate`, `tool:<name>`, `prompt`, ..."""


class PolicyError(RolloutError):
    """The policy made something that cannot be trained on (no sampled token at all)."""

    kind = FailureKind.POLICY


class ToolError(RolloutError):
    """A tool broke in a way that is not an observation for the model."""

    kind = FailureKind.TOOL


class EnvironmentFailure(RolloutError):
    """An environment died or answered nonsense."""

    kind = FailureKind.ENVIRONMENT


class InfrastructureError(RolloutError):
    """An engine, a network or a machine failed; the chain may be retried."""

    kind = FailureKind.INFRASTRUCTURE


def described(error: BaseException) -> str:
    """Kind and text of an error, also of a foreign one whose text cannot be made."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  its own `__str__` raises
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, or its kind."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
