"""Engines that generate: the `Generate` protocol, vLLM behind it (in this process or in a Ray actor), a scripted one.

`vllm.py` and `actor.py` are imported where they are used; this package alone loads neither vLLM nor Ray.
"""

from agentfly_lib.inference.generate import Delta, Generate, GenerateStream, Generation, GenerationRequest
from agentfly_lib.inference.scripted import ScriptedGenerate

__all__ = ["Delta", "Generate", "GenerateStream", "Generation", "GenerationRequest", "ScriptedGenerate"]
