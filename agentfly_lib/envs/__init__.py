"""Environments: places where agents act, each with its actions, problems and reward."""

from agentfly_lib.envs.environment import Action, Environment, EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.envs.registry import environment_names, get_environment
from agentfly_lib.envs.session import EnvironmentSession
from agentfly_lib.envs.spec import EnvironmentSpec, environment_spec

__all__ = [
    "Action",
    "Environment",
    "EnvironmentKind",
    "EnvironmentSession",
    "EnvironmentSettings",
    "EnvironmentSpec",
    "StepResult",
    "environment_names",
    "environment_spec",
    "get_environment",
]
