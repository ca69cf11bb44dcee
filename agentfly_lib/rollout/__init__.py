"""Rollouts: one chain, many chains, and the groups they make, written as they finish."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
