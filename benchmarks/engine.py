"""A vLLM engine in this process, as the pipeline starts it in its actors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentfly_lib.inference.settings import EngineSettings, engine_environment

if TYPE_CHECKING:
    from agentfly_lib.inference.vllm import VllmEngine

__all__ = ["start_engine"]


async def start_engine(settings: EngineSettings) -> VllmEngine:
    """Started; close it. vLLM is imported here, after the variables that it reads at that moment are set."""
    os.environ.update(engine_environment(settings))
    from agentfly_lib.inference.vllm import VllmEngine

    engine = VllmEngine(settings)
    await engine.start()
    return engine
