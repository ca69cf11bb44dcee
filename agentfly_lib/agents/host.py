"""The engine of one agent and the result of its last run: all that changes about an agent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentfly_lib.agents.backend import DEFAULT_CONTEXT_LENGTH, open_backend
from agentfly_lib.agents.result import RunResult
from agentfly_lib.chat import ChatFormat
from agentfly_lib.inference import Generate

__all__ = ["EngineHost"]


@dataclass
class EngineHost:
    """An engine, whether it is ours to end, and what was last done with it."""

    engine: Generate
    context_length: int
    owned: bool
    last: RunResult | None = None

    @classmethod
    def open(
        cls, backend: Generate | str | None, config: Mapping[str, Any], *, model: str | Path, chat: ChatFormat
    ) -> Self:
        """A backend by name and config, not started; or an engine that somebody else owns. Raises `ConfigError`."""
        options = dict(config)
        if backend is not None and not isinstance(backend, str):
            return cls(backend, options.get("context_length", DEFAULT_CONTEXT_LENGTH), owned=False)
        if backend is not None:
            options.setdefault("backend", backend)
        engine, context_length = open_backend(options, model=model, chat=chat)
        return cls(engine, context_length, owned=True)

    async def close(self) -> None:
        """Ends an engine that is ours and can be ended; a later run starts it again."""
        close = getattr(self.engine, "close", None)
        if self.owned and close is not None:
            ending = close()
            if inspect.isawaitable(ending):
                await ending
