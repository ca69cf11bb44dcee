"""How turns and trajectories end, and who is to blame where one failed. Part of `agentfly_lib.types`.

A module of its own because errors name the kinds, and `types` loads numpy, which `agentfly --help` does without.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FailureKind", "FinishReason", "Outcome", "StopReason"]


class StopReason(StrEnum):
    """Why a trajectory ended."""

    FINISHED = "finished"
    """The agent gave its final answer (or called a tool that finishes)."""
    MAX_TURNS = "max_turns"
    """The turn limit was reached while the agent still wanted to act."""
    MAX_TOKENS = "max_tokens"
    """A turn or the trajectory ran out of tokens it may sample."""
    CONTEXT_FULL = "context_full"
    """The next prompt would not leave room to generate in the model's context."""
    NO_TOOL_CALL = "no_tool_call"
    """The agent had to act through a tool and did not."""
    FAILED = "failed"
    """Something other than the policy broke; see `Trajectory.failure`."""

    @property
    def truncated(self) -> bool:
        """Cut by a limit rather than ended by the agent."""
        return self in (StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)


class FinishReason(StrEnum):
    """Why the engine stopped generating one turn."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class FailureKind(StrEnum):
    """Who is to blame for a failed trajectory; decides about retries and what enters the loss."""

    POLICY = "policy"
    TOOL = "tool"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"


class Outcome(StrEnum):
    """How one requested trajectory ended in the ledger: exactly one of these."""

    SCORED = "scored"
    TRUNCATED = "truncated"
    FAILED = "failed"
    DROPPED = "dropped"
