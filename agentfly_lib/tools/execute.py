"""Executes the calls of one turn: checked first, then concurrently, answered in call order, one reply per call.

A call that cannot be executed, or whose tool fails, is an observation for the model, never an exception. Only what is
not the model's business ends the trajectory: a `RolloutError` that a tool raises on purpose, and an
`InfrastructureError` if what the tool needs cannot be opened. If the turn holds a call of a finishing tool, that one
runs after the calls before it, and those after it are not run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentfly_lib.bounded import Outcome, TimedOut, call_in_thread, run_bounded
from agentfly_lib.errors import InfrastructureError, RolloutError, described
from agentfly_lib.tools.call import MalformedCall, ToolCall, ToolContext, ToolResult
from agentfly_lib.tools.observation import cut, to_result, yielded
from agentfly_lib.tools.schema import ArgumentError
from agentfly_lib.tools.tool import Tool

__all__ = ["execute_calls"]

logger = logging.getLogger(__name__)

_MAX_ANSWER = 1_000_000
"""Characters of an answer, which no limit of observations cuts."""


async def execute_calls(
    calls: Sequence[ToolCall | MalformedCall],
    tools: Mapping[str, Tool],
    context: ToolContext,
    *,
    default_timeout: float,
    max_chars: int,
) -> list[ToolResult]:
    """Runs the calls of one turn; the results are in call order.

    default_timeout: seconds for a call whose tool sets no limit. max_chars: same for the length of observations.

    Raises `RolloutError` (see above), once all calls that run at the same time have ended.
    """
    prepared = [_prepare(call, tools) for call in calls]
    last = next((i for i, item in enumerate(prepared) if isinstance(item, _Ready) and item.tool.finishes), len(calls))

    async def answer(item: _Ready | ToolResult) -> ToolResult:
        if isinstance(item, ToolResult):  # refused, in words that repeat what the model wrote, however long that was
            return dataclasses.replace(item, observation=cut(item.observation, max_chars))
        return await _run(item, context, default_timeout=default_timeout, max_chars=max_chars)

    answers = await asyncio.gather(*(answer(item) for item in prepared[:last]), return_exceptions=True)
    results = [_result(outcome) for outcome in answers]
    if last < len(calls):
        results.append(await answer(prepared[last]))
        finisher = calls[last]
        name = finisher.name if isinstance(finisher, ToolCall) else ""
        results += [
            ToolResult.refused(f"This call was not run, because it came after {name}.") for _ in calls[last + 1 :]
        ]
    return results


@dataclass(frozen=True, slots=True)
class _Ready:
    tool: Tool
    keywords: dict[str, Any]


def _prepare(call: ToolCall | MalformedCall, tools: Mapping[str, Tool]) -> _Ready | ToolResult:
    """A call that can be run, or the reason why it cannot."""
    if isinstance(call, MalformedCall):
        return ToolResult.refused(call.message)
    tool = tools.get(call.name)
    if tool is None:
        return ToolResult.refused(f"There is no tool {call.name!r}. {_known(call.name, tools)}")
    try:
        return _Ready(tool, tool.arguments.validate(call.arguments))
    except ArgumentError as error:
        return ToolResult.refused(f"{call.name} was not called: {error}.")


async def _run(ready: _Ready, context: ToolContext, *, default_timeout: float, max_chars: int) -> ToolResult:
    tool = ready.tool
    timeout = default_timeout if tool.timeout is None else tool.timeout
    limit = max_chars if tool.max_chars is None else tool.max_chars
    await _open_needs(tool, context)
    outcome = await _call_once(ready, context, timeout)
    for attempt in range(tool.retries):
        if outcome.error is None or isinstance(outcome.error, TimedOut | RolloutError):
            break
        logger.debug("tool %s raised (attempt %d)", tool.name, attempt + 1, exc_info=outcome.error)
        outcome = await _call_once(ready, context, timeout)
    if isinstance(outcome.error, RolloutError):
        raise outcome.error
    if isinstance(outcome.error, TimedOut):
        return ToolResult.refused(f"{tool.name} did not answer within {timeout:g} seconds.")
    if outcome.error is not None:
        return ToolResult.refused(cut(f"{tool.name} failed: {described(outcome.error)}", limit))
    result: ToolResult = outcome.value
    finished = result.finished or (tool.finishes and result.error is None)
    answer = cut(result.answer, _MAX_ANSWER) if finished and result.answer is not None else None
    return dataclasses.replace(result, observation=cut(result.observation, limit), finished=finished, answer=answer)


async def _call_once(ready: _Ready, context: ToolContext, timeout: float) -> Outcome:
    tool, keywords = ready.tool, dict(ready.keywords)
    if tool.arguments.context_name is not None:
        keywords[tool.arguments.context_name] = context

    def call() -> Any:
        value = tool.function(**keywords)
        # What a value looks like as text is part of the tool's time, and off the event loop where the tool is.
        return value if inspect.isawaitable(value) or isinstance(value, AsyncIterator) else to_result(value)

    async def run() -> ToolResult:
        value = call() if tool.is_async else await call_in_thread(call)
        if inspect.isawaitable(value):
            value = await value
            if isinstance(value, Iterator):  # which may block
                return await call_in_thread(functools.partial(to_result, value))
            value = value if isinstance(value, AsyncIterator) else to_result(value)
        return to_result(await yielded(value)) if isinstance(value, AsyncIterator) else value

    return await run_bounded(run(), timeout)


async def _open_needs(tool: Tool, context: ToolContext) -> None:
    if tool.needs is None:
        return
    try:
        await context.resources.get(tool.needs)
    except RolloutError:
        raise
    except Exception as error:
        # Whatever keeps a resource from opening is no doing of the policy, and may go better on another try.
        raise InfrastructureError(
            f"a resource that {tool.name} needs cannot be opened: {described(error)}", where=f"tool:{tool.name}"
        ) from error


def _result(outcome: ToolResult | BaseException) -> ToolResult:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _known(name: str, tools: Mapping[str, Tool]) -> str:
    if not tools:
        return "There are no tools here."
    near = difflib.get_close_matches(name, tools, n=1)
    return f"Did you mean {near[0]}?" if near else f"The tools are: {', '.join(tools)}."
