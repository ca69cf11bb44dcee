"""The tools of an environment: each of its actions, called by a model, is a step in the trajectory's own episode.

tools = environment_tools(environment_spec("webshop"))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from agentfly_lib.envs.environment import Action
from agentfly_lib.envs.session import EnvironmentSession
from agentfly_lib.envs.spec import EnvironmentSpec
from agentfly_lib.errors import ConfigError
from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.given_schema import GivenArguments
from agentfly_lib.tools.schema import Arguments, read_signature
from agentfly_lib.tools.tool import Tool

__all__ = ["environment_tools"]

WAITING_CALLS = 8
"""Calls of one turn that may wait for each other."""
_CONTEXT = "the context"
"""Keyword that carries it: no argument of an action can have this name."""


def environment_tools(spec: EnvironmentSpec) -> list[Tool]:
    """One tool per action of the environment, with its name, arguments and description.

    Raises `ConfigError` for an action that cannot be described to a model.
    """
    kind, actions = spec.kind, spec.kind.actions
    if callable(actions):
        actions = actions(spec.settings)
    if not actions:
        raise ConfigError(f"environment {kind.name!r} has no actions")
    return [_tool(spec, action) for action in actions]


def _tool(spec: EnvironmentSpec, action: Callable[..., str] | Action) -> Tool:
    name = action.name if isinstance(action, Action) else getattr(action, "__name__", "")
    arguments, write = _described(action, name)

    async def act(**given: Any) -> ToolResult:
        context: ToolContext = given.pop(_CONTEXT)
        text = write(**given)
        if not isinstance(text, str):
            raise ConfigError(f"action {name} of {spec.kind.name} returned a {type(text).__name__}, not text")
        progress = await _session(spec, context).step(text)
        return ToolResult(
            observation=progress.step.observation,
            finished=progress.step.done,
            env_reward=progress.total,
            error=progress.step.error,
            images=progress.step.images,
        )

    return Tool(
        name=name,
        function=act,
        summary=arguments.description,
        signature=arguments,
        # The first call begins the episode, and calls of one turn wait for each other; each step has its own limit.
        timeout=(WAITING_CALLS + 1) * spec.kind.step_limit(spec.settings) + 30.0,
        needs=spec,
    )


def _described(action: Callable[..., str] | Action, name: str) -> tuple[Arguments | GivenArguments, Callable[..., str]]:
    if isinstance(action, Action):
        schema = dict(action.parameters)
        return GivenArguments(schema=schema, description=action.description, context_name=_CONTEXT), action.write
    return dataclasses.replace(read_signature(action, tool=name), context_name=_CONTEXT), action


def _session(spec: EnvironmentSpec, context: ToolContext) -> EnvironmentSession:
    key = f"environment:{spec.kind.name}"
    sessions: dict[EnvironmentSpec, EnvironmentSession] = context.state.setdefault(key, {})
    if spec not in sessions:
        sessions[spec] = EnvironmentSession(spec.kind, context.resources[spec], context.problem.columns)
    return sessions[spec]
