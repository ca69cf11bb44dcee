"""Agents: a model with its prompt, tools, reward and limits, one kind per file. Loads no engine."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
