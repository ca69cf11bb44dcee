"""A calculator that is slow at the right moment, named in tests as `tests.flows.patient_calculator:calculator`.

For the first four chains of every group of the middle steps it answers only once a collection has begun that begins
with the next version: what these chains sampled before is of the old one, and what they sample now is of the new one,
on any machine.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.tools import ToolContext, tool
from agentfly_lib.tools.arithmetic import evaluate, format_number

STEPS = 4
LAG = 2
SECONDS = 500.0


@tool(timeout=SECONDS)
async def calculator(expression: str, context: ToolContext) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, for example (12 + 3) * 4.
    """
    group, chain = context.trajectory_id.rsplit("/", 1)
    if not group.startswith("eval"):
        step = int(group.split("-")[0])
        # Step s begins with version s - LAG, those before LAG with version 0.
        with_next = RunDirectory(Path(os.environ["PATIENT_RUN"])).step(max(step, LAG) + 1)
        while 0 < step < STEPS - 1 and int(chain) < 4 and not with_next.rollout_manifest.exists():
            await asyncio.sleep(0.01)
    return format_number(evaluate(expression))
