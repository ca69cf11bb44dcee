"""What a recipe would take, worked out before anything is started: who runs where, how much memory, how many tokens."""

from agentfly_lib.planning.machine import Machine
from agentfly_lib.planning.plan import Plan, plan_run
from agentfly_lib.planning.shape import ModelShape

__all__ = ["Machine", "ModelShape", "Plan", "plan_run"]
