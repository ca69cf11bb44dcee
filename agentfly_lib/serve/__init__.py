"""One command for one machine: the Prefect and MLflow servers, a worker, the deployments; and the two pages alone.

ports      who holds a port, before anything starts
child      a process that is watched: its health, its log, its end
keeper     starts children, restarts the ones that die, ends them all
servers    what the servers and the worker are called with
prefect_api  the few questions to the Prefect server that tell whether it is ready
registry   what prefect.yaml says, and whether the server has it already
serve      the command
pages      the two pages over runs that are there, without worker and schedules
"""

from agentfly_lib.serve.command import ServeOptions, serve
from agentfly_lib.serve.pages import serve_pages

__all__ = ["ServeOptions", "serve", "serve_pages"]
