"""What a trajectory borrows: a sandbox, or whatever else has a spec; opened at first use, closed at its end."""

from agentfly_lib.resources.process import Completed, Process, ProcessSpec, open_process
from agentfly_lib.resources.scope import ResourceScope
from agentfly_lib.resources.spec import ResourceSpec

__all__ = ["Completed", "Process", "ProcessSpec", "ResourceScope", "ResourceSpec", "open_process"]
