"""Text of a token stream, piece by piece, such that the pieces joined equal decoding everything at once.

A character may be spread over several tokens (CJK and emoji in byte-level vocabularies), so text is held back until it
can no longer change: while it ends in the replacement character, and while the last token is a raw byte of a
byte-fallback vocabulary. Only the tokens since the last safe point are decoded again, with the stretch before it as
context, because some decoders treat the first token of a text in their own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = ["StreamDecoder"]

_REPLACEMENT = "\ufffd"
_RAW_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class StreamDecoder:
    """One stream. `push` returns the text that has become certain, `finish` the rest."""

    def __init__(self, decode: Callable[[Sequence[int]], str], token_text: Callable[[int], str]) -> None:
        self._decode = decode
        self._token_text = token_text
        self._ids: list[int] = []
        self._safe = 0
        """How many of the ids are context: their text has been given out."""
        self._safe_text = ""
        self._given = 0
        """Characters of the text after the context that have been given out."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Adds tokens; returns the text that is certain now and was not returned before (possibly empty)."""
        if not token_ids:
            return ""
        self._ids.extend(token_ids)
        if _RAW_BYTE.fullmatch(self._token_text(self._ids[-1])):
            return ""
        text = self._text()
        certain = text.rstrip(_REPLACEMENT)
        piece = certain[self._given :]
        self._given = max(self._given, len(certain))
        if certain == text:
            self._advance()
        return piece

    def finish(self) -> str:
        """The text still held back; incomplete characters come as replacement characters, as in decoding at once."""
        piece = self._text()[self._given :]
        self._ids, self._safe, self._safe_text, self._given = [], 0, "", 0
        return piece

    def _text(self) -> str:
        return self._decode(self._ids)[len(self._safe_text) :]

    def _advance(self) -> None:
        """Everything so far is certain: what follows the old context becomes the new one."""
        self._ids = self._ids[self._safe :]
        self._safe = len(self._ids)
        self._safe_text = self._decode(self._ids)
        self._given = 0
