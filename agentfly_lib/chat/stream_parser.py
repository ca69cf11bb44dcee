"""A reply parsed while it is sampled: content as soon as it is certain, the whole result at the end.

    stream = StreamParser(parser)
    for delta in deltas:
        show(stream.push(delta))
    rest, reply = stream.finish()

However the text is cut into deltas, the pieces joined are `reply.content`, and `reply` is what the parser gives for the
whole text. Markup of calls is never among them: text that could be the beginning of an opening is held back, and so is
everything from an opening on until its block can no longer change. A block that still can is read again once it has
grown by a share of its length, so that a long one does not cost the square of it.
"""

from __future__ import annotations

from agentfly_lib.chat.blocks import MAX_CALLS, REASONING_END, REASONING_START, BlockParser, skip_space
from agentfly_lib.chat.calls import ParsedReply

__all__ = ["StreamParser"]

_GROWTH = 32
"""An unsettled block is read again when it is longer by one part in this many."""


class StreamParser:
    """One reply. `push` returns content that has become certain, `finish` the rest and the parsed reply."""

    def __init__(self, parser: BlockParser) -> None:
        self._parser = parser
        self._text = ""
        self._position = 0
        """Everything before it is given out or read as a block."""
        self._answering = not parser.has_think_tags
        """Whether it is known where the answer begins, so that blocks may be read."""
        self._space = ""
        """White space that is content only if more content follows."""
        self._given = 0
        self._calls = 0
        """Calls of the blocks that are read."""
        self._worth_reading = 0
        """Length of the text from which on the block at hand is read again."""

    def push(self, delta: str) -> str:
        """Adds text; returns content that is certain now and was not returned before (possibly empty)."""
        self._text += delta
        outside = list[str]()
        if not self._answering:
            outside.append(self._before_answer())
        if self._answering:
            outside.append(self._answer())
        return self._without_outer_space("".join(outside))

    def finish(self) -> tuple[str, ParsedReply]:
        """The content still held back, and the reply taken apart."""
        reply = self._parser.parse(self._text)
        return reply.content[self._given :], reply

    def _before_answer(self) -> str:
        """Content while reasoning may still be going on; notices where the answer begins."""
        begin = skip_space(self._text, 0)
        head = self._text[begin : begin + len(REASONING_START)]
        thinking = head == REASONING_START
        if not thinking and REASONING_START.startswith(head):
            return ""
        end = self._text.find(REASONING_END, max(0, self._position - len(REASONING_END)))
        opening = self._parser.opening.search(self._text, self._position, partial=True)
        whole_opening = opening is not None and not opening.partial
        if end >= 0 and (thinking or opening is None or end < opening.start()):
            self._answering = True
            return self._take(end + len(REASONING_END))
        if whole_opening and not thinking:
            self._answering = True  # no reasoning: what stands before the call is content
        return self._take(opening.start() if opening is not None else len(self._text))

    def _answer(self) -> str:
        outside = list[str]()
        while True:
            opening = self._parser.opening.search(self._text, self._position, partial=True)
            outside.append(self._take(opening.start() if opening is not None else len(self._text)))
            if opening is None or opening.partial or self._calls > MAX_CALLS:
                break
            if len(self._text) < self._worth_reading:
                break
            block = self._parser.block(self._text, opening.start(), opening.end())
            if not block.settled:
                self._worth_reading = len(self._text) + (len(self._text) - opening.start()) // _GROWTH
                break
            self._position = block.end
            self._calls += len(block.attempts)
        return "".join(outside)

    def _take(self, end: int) -> str:
        """The text up to `end`; nothing if it was taken already."""
        piece = self._text[self._position : end]
        self._position = max(self._position, end)
        return piece

    def _without_outer_space(self, piece: str) -> str:
        text = self._space + piece
        if not self._given:
            text = text.lstrip()
        core = text.rstrip()
        self._space = text[len(core) :]
        self._given += len(core)
        return core
