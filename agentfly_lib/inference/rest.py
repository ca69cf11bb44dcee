"""Sleeping engines: GPU memory is given back while the learner needs it, and taken again before the next weights."""

from __future__ import annotations

from typing import Any, Literal, Protocol

__all__ = ["Rest", "SleepLevel", "Sleeper"]

SleepLevel = Literal[1, 2]
"""1 keeps the weights in host memory; 2 forgets them, for those that are sent new ones anyway."""


class Sleeper(Protocol):
    """What of vLLM's engine is used; on a CPU it only stops scheduling."""

    def sleep(self, level: int = 1) -> Any:
        """Abort what runs, and give back the memory of weights and cache."""

    def wake_up(self) -> Any:
        """Take the memory again."""


class Rest:
    """Whether an engine sleeps. Each change is made once, however often it is asked for."""

    def __init__(self) -> None:
        self.level: SleepLevel | Literal[0] = 0
        """0 while the engine is awake."""

    def sleep(self, engine: Sleeper, level: SleepLevel) -> bool:
        """Put it to sleep; False if it sleeps already, at whatever level.

        A sleep that fails counts as one: nobody knows what is left, and waking is the way back.
        """
        if self.level:
            return False
        self.level = level
        engine.sleep(level)
        return True

    def wake(self, engine: Sleeper) -> bool:
        """Wake it; False if it was awake. One that fails may be tried again."""
        if not self.level:
            return False
        engine.wake_up()
        self.level = 0
        return True
