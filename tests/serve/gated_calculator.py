"""A calculator that waits at a gate, named in tests as `tests.serve.gated_calculator:calculator`.

From step 1 on it answers only once the file that the environment names in GATE is there: until then no run ends. It
needs a sandbox, so that a run that waits has some, although the small model knows how to call nothing but a calculator.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agentfly_lib.tools import ToolContext, tool
from agentfly_lib.tools.arithmetic import evaluate, format_number
from agentfly_lib.tools.sandbox import SandboxSettings

SECONDS = 500.0


@tool(needs=SandboxSettings(warm=2).spec, timeout=SECONDS)
async def calculator(expression: str, context: ToolContext) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, for example (12 + 3) * 4.
    """
    group = context.trajectory_id.rsplit("/", 1)[0]
    if not group.startswith(("eval", "000000")):
        while not Path(os.environ["GATE"]).exists():
            await asyncio.sleep(0.05)
    return format_number(evaluate(expression))
