"""AgentFly: reinforcement learning for LLM agents that use tools over many turns, as a durable pipeline.

Nothing heavy is imported here; take what you need from the subpackages (`agents`, `tools`, `rewards`, ...).
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
