"""What a trajectory borrows: a sandbox, or whatever else has a spec; opened at first use, closed at its end."""

from agentfly_lib.resources.engine import ResourceEngine
from agentfly_lib.resources.process import Completed, Process, ProcessSpec, open_process
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
    "open_process",
]
