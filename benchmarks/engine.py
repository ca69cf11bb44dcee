"""A vLLM engine in this process, with the variables that it reads when it is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentfly_lib.inference.settings import EngineSettings, engine_environment

if TYPE_CHECKING:
    from agentfly_lib.inference.vllm import VllmEngine

__all__ = ["vllm_engine"]


def vllm_engine(settings: EngineSettings) -> VllmEngine:
    """Not started yet."""
    os.environ.update(engine_environment(settings))
    from agentfly_lib.inference.vllm import VllmEngine

    return VllmEngine(settings)
