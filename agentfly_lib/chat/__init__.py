"""Messages to token ids and back: templates, bridges, tool-call parsers. The only place that calls a tokenizer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
