"""The run directory: what is on disk is the truth, and it is always whole."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
