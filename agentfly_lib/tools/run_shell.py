"""`run_shell`: shell commands in the trajectory's sandbox, on the files that the file tools and the interpreter see."""

from __future__ import annotations

from agentfly_lib.tools.call import ToolContext, ToolResult
from agentfly_lib.tools.sandbox import SandboxSettings, sandbox_of
from agentfly_lib.tools.tool import Tool, tool

__all__ = ["RunShellSettings", "make_run_shell", "run_shell"]


_BEST_SHELL = 'exec "$(command -v bash || echo sh)" -c "$1"'


class RunShellSettings(SandboxSettings):
    """Limits of a command."""

    seconds: float = 30.0


def make_run_shell(settings: RunShellSettings) -> Tool:
    """The tool with these limits."""
    spec = settings.spec

    @tool(needs=spec, timeout=settings.timeout, settings=settings, make=make_run_shell)
    async def run_shell(command: str, context: ToolContext) -> ToolResult:
        """Run a shell command. Files stay for the next call; variables and the current folder do not. No network.

        Args:
            command: What to run, in /workspace.
        """
        done = await sandbox_of(context, spec).run(
            ["sh", "-c", _BEST_SHELL, "sh", command], seconds=settings.seconds, max_bytes=settings.max_output_bytes
        )
        error = None
        if done.timed_out:
            error = f"The command ran longer than {settings.seconds:g} s and was stopped, with all that it had started."
        elif done.exit_code != 0:
            error = f"The command {done.ending}."
        observation = "\n".join(filter(None, [done.shown(), f"[{error}]" if error else ""]))
        return ToolResult(observation=observation or "(no output)", error=error)

    return run_shell


run_shell = make_run_shell(RunShellSettings())
"""With the limits that `RunShellSettings` says."""
