"""Texts that end a generation, found in tokens while they are sampled.

A generation ends with the first token by which one of the texts is complete; that token is kept, whatever else its text
holds. Nothing is cut inside a token, so ids and log-probs stay those that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from agentfly_lib.inference.generate import GenerationRequest

__all__ = ["Decode", "StopStrings", "stops_of", "text_decoder"]

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, special tokens included."""

_REPLACEMENT = "\ufffd"
_MARGIN = 8
"""Tokens before those that can hold a stop text: some decoders treat the first ones in their own way."""


class StopStrings:
    """The search in one generation."""

    def __init__(self, decode: Decode, strings: Sequence[str], *, min_tokens: int = 0) -> None:
        """Take what decodes, and the texts; what is complete within `min_tokens` tokens does not count."""
        self._decode = decode
        self._strings = tuple(strings)
        self._min_tokens = min_tokens
        self._window = max(len(text.encode()) for text in strings) + _MARGIN  # a token is a byte or more
        self._recent: list[int] = []
        self._count = 0

    def push(self, token: int) -> bool:
        """Take the next token; True if it completes one of the texts."""
        self._count += 1
        self._recent = [*self._recent[-self._window :], token]
        if self._count <= self._min_tokens:
            return False
        before = len(self._decode(self._recent[:-1]).rstrip(_REPLACEMENT))
        text = self._decode(self._recent)
        return any(text.find(stop, max(0, before - len(stop) + 1)) >= 0 for stop in self._strings)


def stops_of(request: GenerationRequest, decode: Decode | None) -> StopStrings | None:
    """The search that a request asks for; None if it asks for none. Raises `ValueError` if nothing decodes."""
    if not request.sampling.stop:
        return None
    if decode is None:
        raise ValueError(f"request {request.request_id!r} has stop strings, and nothing here decodes tokens to text")
    return StopStrings(decode, request.sampling.stop, min_tokens=request.sampling.min_tokens)


@lru_cache(maxsize=8)
def text_decoder(model: str | Path) -> Decode:
    """What decodes with a model's own tokenizer. Raises `ValueError` if there is none in the model's directory."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"stop strings need the tokenizer of {model}, which cannot be loaded: {reason}") from error

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode
