"""One call of a reward, under its time limit, wherever that kind of function is safe to run."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from agentfly_lib.bounded import TimedOut, call_in_thread, run_bounded
from agentfly_lib.rewards.pool import CallDied, CallFailed, CallTimedOut, NotImportable, NoWorker, shared_pool
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.rewards.worker import describe

__all__ = ["CallFailed", "CallTimedOut", "JudgedInWorker", "call_in_worker", "call_reward"]

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1800.0
"""That a text waits for a worker to judge it, behind texts that each take their whole limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedInWorker:
    """What an `inline` reward returns for a text that only a worker process can be trusted with. Awaitable.

    A text that takes all the time there is, or brings the process down, is worth 0: dropped, it would be better off
    than one that is wrong. A worker that cannot be had is no fault of the text, and fails as any reward does.
    """

    target: str
    """`module:function` of what judges it. What this raises is no verdict: it must not raise because of the text."""
    keywords: Mapping[str, Any]
    seconds: float
    """Limit of the call, in which waiting for a worker does not count."""

    def __await__(self) -> Generator[Any, None, float]:
        return self.within(self.seconds).__await__()

    async def within(self, seconds: float) -> float:
        """The function's verdict. Raises `CallTimedOut` or `CallFailed` if there is no worker."""
        why: Exception | None = None
        for _ in range(2):  # the kernel may have ended a worker for the memory that others took
            try:
                judging = call_in_worker(
                    self.target,
                    dict(self.keywords),
                    seconds=min(seconds, self.seconds),
                    wait_seconds=WAIT_SECONDS,
                )
                return float(await judging)
            except NotImportable as error:
                raise CallFailed(str(error)) from error
            except NoWorker:
                raise
            except CallDied as error:
                why = error
            except CallTimedOut as error:
                why = error
                break
        logger.info("%s gave up a text, which is worth 0: %s", self.target, why)
        return 0.0


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
        if isinstance(value, JudgedInWorker):
            return await value.within(seconds)
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


async def call_in_worker(
    target: str, keywords: dict[str, Any], *, seconds: float, wait_seconds: float | None = None
) -> Any:
    """See `WorkerPool.call`: calls `module:function` in a killable process."""
    call = functools.partial(shared_pool().call, target, keywords, seconds=seconds, wait_seconds=wait_seconds)
    return await call_in_thread(call)


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
