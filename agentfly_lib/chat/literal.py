"""Text that spells a control token, kept from becoming one.

A user's message or a web page may contain `<|im_start|>`. Before rendering, each such spelling in a content is replaced
by a placeholder, one private-use character; templates see ordinary text. After rendering, the placeholders are encoded
by a copy of the tokenizer that knows no added tokens, so that the model reads the spelling and not the control token.
What the template itself writes stays as it is.

Control tokens are guarded in every message and in tool schemas: special ones, and those spelled like one (`<|user|>`,
`<｜User｜>`), which some vocabularies do not mark as special. In tool results, which come from outside, tags with a
token of their own are too (`</tool_response>`, `<tool_call>`, ...), so that a result cannot end itself and call a tool.
Where a content is a list of parts, which a template may join, the beginning of a spelling at a part's end is guarded
as well. Some tokenizers look for control tokens in normalized text, where `<|IM_START|>` or one in wide characters may
have become one; there, the characters that would be changed into a part of it are guarded.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentfly_lib.types import Message

__all__ = ["Escaped", "LiteralGuard"]

_PRIVATE_USE = (0xF0000, 0xFFFFD)
"""Supplementary Private Use Area-A: no assigned meaning, one character each."""

_SHORT, _REMEMBERED = 256, 4096
"""Characters of a text that is remembered, and how many such texts are."""

_TAG = re.compile(r"<\S+>")
_CONTROL = re.compile(r"<[|｜]\S+[|｜]>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Escaped:
    """Messages and tools in which spellings of control tokens are placeholders."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    spelling: Mapping[str, str]
    """From a placeholder to what it stands for; empty in the usual case, and then nothing was changed."""

    def pieces(self, text: str) -> Iterable[tuple[str, bool]]:
        """A rendered text in order, as (text, literal) pairs."""
        if not self.spelling:
            yield text, False
            return
        pattern = f"([{''.join(self.spelling)}])"
        for piece in re.split(pattern, text):
            if piece:
                yield self.spelling.get(piece, piece), piece in self.spelling


class LiteralGuard:
    """Knows the control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        added = list(tokenizer.added_tokens_decoder.values())
        special = [token.content for token in added if token.special or _CONTROL.fullmatch(token.content)]
        markup = [token.content for token in added if token.special or _TAG.fullmatch(token.content)]
        self._special, self._special_parts = _pattern(special), _pattern(special, in_parts=True)
        self._markup, self._markup_parts = _pattern(markup), _pattern(markup, in_parts=True)
        self._disguises = _Disguises.of(tokenizer, [token for token in added if token.content in {*special, *markup}])
        self._disguised: dict[str, set[str]] = {}
        """What was found in short texts: keys, roles and tool schemas come again in every turn of every chain."""
        self._tokenizer = tokenizer
        self._encode: Callable[[str], list[int]] | None = None

    def escape(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, known: int | None = None
    ) -> Escaped:
        """Replaces spellings; messages without any are passed through as they are.

        known: the tools and so many of the first messages are known to have none.
        """
        found = set[str]()
        for message in messages[known or 0 :]:
            pattern = self._pattern_for(message)
            for text in _strings(message):
                found.update(self._found(pattern, text))
        for text in _strings(tools or ()) if known is None else ():
            found.update(self._found(self._special, text))
        plain_tools = [dict(tool) for tool in tools] if tools else None
        if not found:
            return Escaped(messages=list(messages), tools=plain_tools, spelling={})
        placeholder = dict(zip(sorted(found), _unused_characters(len(found), [*messages, *(tools or ())]), strict=True))

        def replace(pattern: re.Pattern[str], value: Any) -> Any:
            return _map_strings(value, lambda text: guarded(pattern, text))

        def guarded(pattern: re.Pattern[str], text: str) -> str:
            disguised = {character: placeholder[character] for character in self._disguises.find(text)}
            return pattern.sub(lambda match: placeholder[match.group()], text).translate(str.maketrans(disguised))

        return Escaped(
            messages=[replace(self._pattern_for(message), message) for message in messages],
            tools=replace(self._special, plain_tools),
            spelling={character: text for text, character in placeholder.items()},
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of a spelling, none of them an added token."""
        if self._encode is None:
            self._encode = _literal_encoder(self._tokenizer)
        return self._encode(text)

    def _found(self, pattern: re.Pattern[str], text: str) -> set[str]:
        return {*pattern.findall(text), *self._disguised_in(text)}

    def _disguised_in(self, text: str) -> set[str]:
        if len(text) > _SHORT:
            return self._disguises.find(text)
        if (found := self._disguised.get(text)) is None:
            if len(self._disguised) >= _REMEMBERED:
                self._disguised.clear()
            found = self._disguised[text] = self._disguises.find(text)
        return found

    def _pattern_for(self, message: Message) -> re.Pattern[str]:
        in_parts = isinstance(message.get("content"), list)
        if message.get("role") in ("tool", "function", "ipython"):
            return self._markup_parts if in_parts else self._markup
        return self._special_parts if in_parts else self._special


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disguises:
    """How a normalizer could make control tokens of other characters."""

    normalize: Callable[[str], str]
    tokens: frozenset[str]
    """Those that are looked for in normalized text, normalized; none for most tokenizers."""

    @classmethod
    def of(cls, tokenizer: Any, control: Iterable[Any]) -> _Disguises:
        normalizer = tokenizer.backend_tokenizer.normalizer
        normalize = str if normalizer is None else normalizer.normalize_str
        loose = [] if normalizer is None else [token.content for token in control if token.normalized]
        return cls(normalize=normalize, tokens=frozenset(filter(None, map(normalize, loose))))

    def find(self, text: str) -> set[str]:
        """The characters of a text that normalizing changes into a part of a control token, or takes out of its way."""
        if not self.tokens:
            return set()
        plain = self.normalize(text)
        parts = {character for token in self.tokens if token in plain for character in token}
        return {
            character
            for character in set(text) - parts
            if parts and (not (normal := self.normalize(character)) or not parts.isdisjoint(normal))
        }


def _literal_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """A copy, because switching the shared tokenizer to literal mode and back would race with other callers."""
    from tokenizers import AddedToken

    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    # Only tokens marked as special are split on demand, so all are marked in the copy.
    backend.add_special_tokens(
        [
            AddedToken(token.content, special=True, normalized=token.normalized)
            for token in tokenizer.added_tokens_decoder.values()
        ]
    )
    backend.encode_special_tokens = True
    return lambda text: list(backend.encode(text, add_special_tokens=False).ids)


def _pattern(spellings: Iterable[str], *, in_parts: bool = False) -> re.Pattern[str]:
    """Any of the spellings; `in_parts`, also the beginning of one at the end of a text, to be completed elsewhere."""
    ordered = sorted({text for text in spellings if text}, key=len, reverse=True)
    choices = [re.escape(text) for text in ordered]
    if in_parts:
        beginnings = {text[:length] for text in ordered for length in range(1, len(text))}
        choices += [rf"{re.escape(text)}\Z" for text in sorted(beginnings, key=len, reverse=True)]
    return re.compile("|".join(choices) if choices else r"(?!)")


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for item in value:
            yield from _strings(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_map_strings(item, change) for item in value]
    return value


def _unused_characters(count: int, values: Sequence[Any]) -> list[str]:
    used = {character for text in _strings(values) for character in text if ord(character) >= _PRIVATE_USE[0]}
    free = (chr(code) for code in range(*_PRIVATE_USE) if chr(code) not in used)
    return [next(free) for _ in range(count)]
