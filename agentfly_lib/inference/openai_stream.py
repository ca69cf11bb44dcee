"""A streamed answer of OpenAI's protocol: told while it comes, and put together to what it would be in one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentfly_lib.inference.endpoint import EndpointUnavailable
from agentfly_lib.inference.generate import Delta

__all__ = ["StreamedAnswer"]


class StreamedAnswer:
    """Chunks of a completion, or of a chat completion, with one choice."""

    def __init__(self, on_delta: Callable[[Delta], None], *, sent_ids: Sequence[int] | None) -> None:
        """Take whom to tell, and the prompt's ids if ids were sent: sampled ids are told only behind these."""
        self.broken_off = True
        """Until the server has said why it ended."""
        self._on_delta = on_delta
        self._sent_ids = sent_ids
        self._choice: dict[str, Any] = {"finish_reason": None}
        self._usage: Any = None
        self._by_ids: bool | None = None
        self._held = ""
        """White space at the end of a message, which a template may take away where calls follow."""

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Takes the next chunk, or a whole answer; raises what the listener raises.

        Raises `EndpointUnavailable` for what is neither.
        """
        try:
            self._usage = chunk.get("usage") or self._usage
            delta = self._add(chunk["choices"][0]) if chunk.get("choices") else None
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EndpointUnavailable(
                f"a chunk of the answer is none of a completion: {type(error).__name__}: {error}"
            ) from error
        if delta:
            self._on_delta(delta)

    def whole(self) -> dict[str, Any]:
        """The answer as a server gives it that does not stream."""
        return {"choices": [self._choice], "usage": self._usage}

    def _add(self, piece: Mapping[str, Any]) -> Delta | None:
        """Takes a piece of the choice; what is to be told of it."""
        choice = self._choice
        if self._by_ids is None:
            self._by_ids = self._are_ours(piece)
        if piece.get("finish_reason") is not None:
            choice["finish_reason"], self.broken_off = piece["finish_reason"], False
        if piece.get("prompt_token_ids") is not None:
            choice["prompt_token_ids"] = piece["prompt_token_ids"]
        token_ids = piece.get("token_ids")
        if isinstance(token_ids, list):
            choice["token_ids"] = choice.get("token_ids", []) + token_ids
        logprobs = (piece.get("logprobs") or {}).get("token_logprobs")
        if isinstance(logprobs, list):
            known = choice.setdefault("logprobs", {"token_logprobs": []})
            known["token_logprobs"] += logprobs
        text = self._add_text(piece)
        return token_ids if self._by_ids else text

    def _add_text(self, piece: Mapping[str, Any]) -> str:
        """Takes the text and the calls of a piece; the text that is certain now."""
        message = piece.get("delta", piece.get("message"))
        text = str((piece.get("text") if message is None else message.get("content")) or "")
        if message is None:
            self._choice["text"] = self._choice.get("text", "") + text
            return text
        whole = self._choice.setdefault("message", {"content": "", "tool_calls": []})
        whole["content"] += text
        for call in message.get("tool_calls") or ():
            _add_call(whole["tool_calls"], call)
        text = self._held + text
        certain = text.rstrip()
        self._held = text[len(certain) :]
        return certain

    def _are_ours(self, piece: Mapping[str, Any]) -> bool:
        """Whether ids come that were sampled behind the prompt that was sent."""
        if not isinstance(piece.get("token_ids"), list) or self._sent_ids is None:
            return False
        return piece.get("prompt_token_ids") in (None, list(self._sent_ids))


def _add_call(calls: list[dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Takes a piece of a call; its `index` says of which, and without one it is a call of its own."""
    index = piece.get("index")
    if not isinstance(index, int):
        index = len(calls)
    if not 0 <= index <= len(calls):
        raise TypeError(f"a piece of call {index} came after {len(calls)} calls")
    if index == len(calls):
        calls.append({"function": {"name": "", "arguments": ""}})
    function = piece.get("function") or {}
    for key in ("name", "arguments"):
        calls[index]["function"][key] += function.get(key) or ""
