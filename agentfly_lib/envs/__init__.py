"""Environments: places where agents act, each with its actions, problems and reward."""

from agentfly_lib.envs.environment import Action, Environment, EnvironmentKind, EnvironmentSettings, StepResult

__all__ = ["Action", "Environment", "EnvironmentKind", "EnvironmentSettings", "StepResult"]
