"""What a trajectory borrows: a sandbox, or whatever else has a spec; opened at first use, closed at its end."""

from agentfly_lib.resources.conversation import Completed
from agentfly_lib.resources.engine import ResourceEngine, counted_since
from agentfly_lib.resources.process import Process, ProcessSpec, open_process
from agentfly_lib.resources.sandbox import Sandbox
from agentfly_lib.resources.scope import ResourceScope
from agentfly_lib.resources.spec import AnySpec, PooledSpec, PoolLimits, PoolScope, Resource, ResourceSpec

__all__ = [
    "AnySpec",
    "Completed",
    "PoolLimits",
    "PoolScope",
    "PooledSpec",
    "Process",
    "ProcessSpec",
    "Resource",
    "ResourceEngine",
    "ResourceScope",
    "ResourceSpec",
    "Sandbox",
    "counted_since",
    "open_process",
]
