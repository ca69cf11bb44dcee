"""One call of a reward, under its time limit, wherever that kind of function is safe to run."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Mapping
from typing import Any

from agentfly_lib.bounded import TimedOut, call_in_thread, run_bounded
from agentfly_lib.rewards.pool import CallFailed, CallTimedOut, NotImportable, shared_pool
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.rewards.worker import describe

__all__ = ["CallFailed", "CallTimedOut", "call_in_worker", "call_reward"]

logger = logging.getLogger(__name__)


async def call_reward(reward: Reward, keywords: Mapping[str, Any], *, seconds: float) -> Any:
    """What the function returned.

    Async functions run on this loop, `inline` ones too; others in a worker process, or in a thread if a worker cannot
    import them. Raises `CallTimedOut` or `CallFailed`.
    """
    if reward.is_async:
        return await _on_loop(reward.function(**keywords), seconds)
    if reward.inline:
        try:
            value = reward.function(**keywords)
        except (Exception, SystemExit) as error:
            raise CallFailed(describe(error)) from error
        return await _on_loop(value, seconds) if inspect.isawaitable(value) else value
    target = import_path(reward)
    if target is not None:
        try:
            return await call_in_worker(target, dict(keywords), seconds=seconds)
        except NotImportable as error:
            _warn_about_thread(reward, str(error))
    else:
        _warn_about_thread(reward, "it does not stand at the top level of a module")
    return await _on_loop(call_in_thread(lambda: reward.function(**keywords)), seconds)


async def call_in_worker(target: str, keywords: dict[str, Any], *, seconds: float) -> Any:
    """Calls `module:function` in a killable process. Raises `CallTimedOut`, `CallFailed` or `NotImportable`."""
    return await call_in_thread(lambda: shared_pool().call(target, keywords, seconds=seconds))


def import_path(reward: Reward) -> str | None:
    """`module:name` under which a fresh interpreter finds the reward, or None (a notebook, `__main__`, a closure)."""
    function = inspect.unwrap(reward.function)
    module_name = getattr(function, "__module__", None)
    qualified_name = getattr(function, "__qualname__", "")
    module = sys.modules.get(module_name or "")
    if module is None or module_name == "__main__":
        return None
    found: Any = module
    for part in qualified_name.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{qualified_name}" if found is reward or found is reward.function else None


async def _on_loop(awaitable: Any, seconds: float) -> Any:
    outcome = await run_bounded(awaitable, seconds)
    error = outcome.error
    if error is None:
        return outcome.value
    if isinstance(error, CallFailed | CallTimedOut):
        raise error
    if isinstance(error, TimedOut):
        raise CallTimedOut(f"did not return within {seconds:g} s") from error
    raise CallFailed(describe(error)) from error


@functools.cache
def _warn_about_thread(reward: Reward, why: str) -> None:
    logger.warning(
        "reward %s runs in a thread, because a worker process cannot import it (%s); if it hangs it is abandoned and "
        "not killed. Move it into a module to have it killed",
        reward.name,
        why,
    )
