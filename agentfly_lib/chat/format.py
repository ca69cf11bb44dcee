"""Conversations as token ids, in one model's own format; the only caller of the tokenizer.

The first prompt is the model's chat template, applied as the model's authors meant it. Every later turn is a *bridge*:
the ids that the template puts after the last sampled token (the rest of the end of the turn, the tool result with its
header, the next generation prompt). Sampled ids are kept as they were sampled, so decoded text is never encoded again.
If the template rewrites what the engine has already seen, a fresh prompt starts a new segment instead.

Pictures of messages are named by their digest (`chat.pictures`); the template writes one placeholder for each, which
becomes as many tokens as the model has features for it (`chat.vision`). A bridge holds those of what it adds alone.

Replies of earlier turns go into the template as the text that was sampled. In families whose calls are control tokens
(`HistoryForm.CALLS`) they go in taken apart, and only what the template puts between two turns is used of the result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agentfly_lib.chat.blocks import BlockParser
from agentfly_lib.chat.bridge import Bridge, text_after_end_of_turn, text_after_reply, text_after_turn
from agentfly_lib.chat.families import Family, HistoryForm, detect_parser
from agentfly_lib.chat.history import orphans_to_users, take_apart
from agentfly_lib.chat.images import Picture
from agentfly_lib.chat.literal import Escaped, LiteralGuard
from agentfly_lib.chat.parsers import get_parser
from agentfly_lib.chat.pictures import shown
from agentfly_lib.chat.probe import probe_templates
from agentfly_lib.chat.stream import StreamDecoder
from agentfly_lib.chat.templates import find_template, is_shipped, own_template, own_templates
from agentfly_lib.chat.vision import ImageLayout, Prompt, expand, find_layout
from agentfly_lib.errors import ModelError, first_line
from agentfly_lib.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatFormat"]

Tools = Sequence[Mapping[str, Any]]
_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.json",
)
"""What is read of a model beside its tokenizer."""

Pictures = Mapping[str, Picture]
_NONE: Pictures = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, eq=False)
class ChatFormat:
    """A tokenizer and its chat template. Immutable, and safe to share between chains."""

    tokenizer: PreTrainedTokenizerBase
    template: str | None = None
    """Jinja source used in place of the tokenizer's own."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end a turn; the one that the template writes comes first."""
    family: Family | None = None
    """What the template is of, if it is of a family that we know."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the template gets besides messages and tools (`enable_thinking`)."""
    vision: ImageLayout | None = None
    """How pictures are written; None if the model does not see: then they have no tokens of their own."""
    _guard: LiteralGuard = field(repr=False)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, template: str | None = None, thinking: bool | None = None
    ) -> ChatFormat:
        """Loads the tokenizer of a model directory or hub id; `template` as in `chat.templates`.

        thinking: whether the model reasons first, for templates that can switch it; unset leaves it to the template.

        Raises `ModelError` if there is no tokenizer, no chat template, one that does not come to an end, or no token
        that could end a turn.
        """
        from transformers import AutoTokenizer

        named = str(path)
        is_place = isinstance(path, Path) or named.startswith(("/", "./", "../", "~"))
        if is_place and not Path(named).is_dir():
            raise ModelError(f"there is no model directory {path}")
        try:
            # Said outright: left open, transformers would ask on the terminal whether to run the directory's own code.
            tokenizer = AutoTokenizer.from_pretrained(named, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"cannot load a tokenizer from {path}: {first_line(error)}") from error
        folder = _folder(named)
        if not tokenizer.chat_template and folder is not None:
            tokenizer.chat_template = _processors_template(folder)
        return cls.from_tokenizer(tokenizer, template=template, thinking=thinking, where=str(path), model_path=folder)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template: str | None = None,
        thinking: bool | None = None,
        where: str = "the tokenizer",
        model_path: str | Path | None = None,
    ) -> ChatFormat:
        """From a tokenizer at hand; `model_path` names the directory whose other files are read too: which tokens end a
        turn, and how pictures are written."""
        if not tokenizer.is_fast:
            raise ModelError(f"{where} has a slow tokenizer; convert it to a tokenizer.json first")
        source, family = find_template(tokenizer, template, where=where)
        options = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        strange = [text for text in (own_templates(tokenizer) if source is None else [source]) if not is_shipped(text)]
        probe_templates(strange, {**tokenizer.special_tokens_map, **options}, where=where)
        draft = cls(
            tokenizer=tokenizer,
            template=source,
            stop_token_ids=(),
            family=family,
            options=options,
            vision=None if model_path is None else find_layout(Path(model_path), tokenizer),
            _guard=LiteralGuard(tokenizer),
        )
        stops = [
            draft._end_of_turn_id(),
            *_known_ids(tokenizer, family.stop_tokens if family is not None else ()),
            tokenizer.eos_token_id,
            *_generation_config_stops(model_path),
        ]
        stop_token_ids = tuple(dict.fromkeys(stop for stop in stops if isinstance(stop, int)))
        if not stop_token_ids:
            raise ModelError(f"{where} has no end-of-sequence token and its chat template ends turns with no token")
        return replace(draft, stop_token_ids=stop_token_ids)

    def prompt(self, messages: Sequence[Message], tools: Tools | None = None, *, pictures: Pictures = _NONE) -> Prompt:
        """Ids of a conversation that the policy is to answer, generation prompt included, and where its pictures are.

        pictures: those that the messages show, by digest.

        Raises `ModelError` for a conversation that the template cannot write, also if it does not write every picture,
        and `ImageError` for a picture that the model cannot take.
        """
        escaped = self._escape(messages, tools)
        text = self._render(escaped)
        prompt = self._expand(self._encode(text, escaped), messages, pictures)
        return replace(prompt, text=None if escaped.spelling else text)

    def prompt_ids(
        self, messages: Sequence[Message], tools: Tools | None = None, *, pictures: Pictures = _NONE
    ) -> list[int]:
        """The ids of `prompt`."""
        return self.prompt(messages, tools, pictures=pictures).ids

    def render(self, messages: Sequence[Message], tools: Tools | None = None, *, generation_prompt: bool = True) -> str:
        """The text that the template writes; spellings of control tokens in contents are placeholders in it."""
        escaped = self._escape(messages, tools)
        return self._render(escaped, generation_prompt=generation_prompt)

    def bridge(
        self,
        history: Sequence[Message],
        reply: str,
        sampled_ids: Sequence[int],
        additions: Sequence[Message],
        tools: Tools | None = None,
        *,
        pictures: Pictures = _NONE,
        before: str | None = None,
    ) -> Bridge:
        """Ids between the last sampled token and the next one.

        history: everything before the reply, the first prompt's messages included.
        reply: the text of `sampled_ids`, as `decode` gives it.
        sampled_ids: this turn's tokens; if the turn was cut, the end-of-turn token is missing, and the bridge adds it.
        additions: what answers the reply (tool results, a user's message).
        pictures: those that any of the messages show, by digest.
        before: `text` of the prompt or bridge that ended with this history, which spares rendering it again.
        """
        reply_ended = bool(sampled_ids) and sampled_ids[-1] in self.stop_token_ids
        end_of_turn = self._text([sampled_ids[-1]]) if reply_ended else ""
        said = reply.removesuffix(end_of_turn)
        conversation = [*history, {"role": "assistant", "content": said}, *additions]
        escaped = self._escape(conversation, tools, known=None if before is None else len(history))
        after = self._render(escaped)
        text = after if said == reply and not escaped.spelling else None
        tail = self._tail(escaped, len(history), after, before)
        if tail is None:
            prompt = self._expand(self._encode(after, escaped), conversation, pictures)
            return Bridge(ids=prompt.ids, images=prompt.images, rewritten=True, text=text)
        added = self._expand(self._tail_ids(tail, escaped, sampled_ids, end_of_turn), additions, pictures)
        return Bridge(ids=added.ids, images=added.images, text=text)

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Ids that a policy must never sample, because they would claim a picture that is not there."""
        return () if self.vision is None else self.vision.banned_token_ids

    def encode(self, text: str) -> list[int]:
        """Ids of text written by us (a template, a scripted reply), control tokens included; never of decoded text."""
        backend = self._encoder
        if backend is None or backend.truncation or backend.padding or backend.encode_special_tokens:
            return list(self.tokenizer.encode(text, add_special_tokens=False))  # which sets it right
        return list(backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, end_of_turn: bool = False) -> str:
        """Text of a reply, special tokens included; the end-of-turn token at its end only if asked for."""
        if ids and not end_of_turn and ids[-1] in self.stop_token_ids:
            ids = ids[:-1]
        return self._text(ids)

    def stream_decoder(self) -> StreamDecoder:
        """For showing text while it is sampled; its pieces joined equal `decode(..., end_of_turn=True)`."""
        return StreamDecoder(self._text, lambda token: str(self.tokenizer.convert_ids_to_tokens(int(token))))

    @property
    def source(self) -> str:
        """Jinja source of the template."""
        return self.template or own_template(self.tokenizer)

    @property
    def parser(self) -> str:
        """Name of the parser for the tool calls that the template teaches; see `chat.parsers`."""
        return detect_parser(self.source, self.family)

    @cached_property
    def fingerprint(self) -> str:
        """Hash over all that decides about ids (vocabulary, template, stop tokens, pictures): equal formats write equal
        ids."""
        template: Any = self.template or self.tokenizer.chat_template
        if self.options:
            template = [template, dict(self.options)]
        digest = hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode())  # type: ignore[attr-defined]
        digest.update(json.dumps([template, self.stop_token_ids], sort_keys=True).encode())
        if self.vision is not None:
            digest.update(repr(self.vision).encode())
        return digest.hexdigest()

    @cached_property
    def _history_parser(self) -> BlockParser | None:
        """What takes earlier replies apart; None where they are written as text."""
        if self.family is None or self.family.history is HistoryForm.TEXT:
            return None
        return get_parser(self.parser)

    @cached_property
    def _encoder(self) -> Any | None:
        """What encodes for the tokenizer, which costs half without it; None for one that adds ways of its own."""
        tokenizer: Any = self.tokenizer
        plain = _is_plain(tokenizer, "encode", "_encode_plus") and not tokenizer.split_special_tokens
        return tokenizer.backend_tokenizer if plain else None

    @cached_property
    def _decode(self) -> Callable[[list[int]], Any]:
        """As `_encoder`, the other way."""
        tokenizer: Any = self.tokenizer
        if _is_plain(tokenizer, "decode", "_decode"):
            return partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=False)
        return partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def arguments_as_text(self) -> bool:
        """Whether the template wants arguments as JSON text: it cannot write a call with an object."""
        call = {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": {}}}
        probe = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00000", "name": "probe", "content": "result"},
        ]
        try:
            self._render(self._guard.escape(probe, None))
        except ModelError:
            return True
        return False

    @property
    def _closers(self) -> tuple[str, ...]:
        return self.family.end_of_turn if self.family is not None else ()

    def _escape(self, messages: Sequence[Message], tools: Tools | None, *, known: int | None = None) -> Escaped:
        """The conversation as the template gets it: guarded, earlier replies in the form that it wants."""
        parser = self._history_parser
        if parser is None:
            return self._guard.escape(messages, tools, known=known)
        apart = take_apart(messages, parser, arguments_as_text=self.arguments_as_text)
        # Tool results are guarded as such, whoever will say them.
        escaped = self._guard.escape(apart, tools, known=known)
        return replace(escaped, messages=orphans_to_users(escaped.messages))

    def _tail(self, escaped: Escaped, reply: int, after: str, before: str | None = None) -> str | None:
        """What the template writes after the reply, message `reply`; None if it rewrites what came before."""
        if before is None or not after.startswith(before):  # what it writes may depend on more, such as the time
            before = self._render(escaped, reply)
        message = escaped.messages[reply]
        if self._history_parser is None:
            return text_after_reply(before, after, message["content"])
        closed = self._render(escaped, reply + 1, generation_prompt=False)
        return text_after_turn(
            before, closed, after, thought=message.get("reasoning_content", ""), closers=self._closers
        )

    def _tail_ids(self, tail: str, escaped: Escaped, sampled_ids: Sequence[int], end_of_turn: str) -> list[int]:
        """Ids of the tail behind the sampled ones, whose last is the end of the turn if there is one."""
        if not end_of_turn:
            return self._encode(tail, escaped)
        # Encoded behind the token that it follows, because some tokenizers treat the start of a text in their own way.
        tail = text_after_end_of_turn(tail, end_of_turn, self._closers)
        ids = self._encode(end_of_turn + tail, escaped)
        return ids[1:] if ids[:1] == [sampled_ids[-1]] else self._encode(tail, escaped)

    def _expand(self, ids: Sequence[int], messages: Sequence[Message], pictures: Pictures) -> Prompt:
        if self.vision is None:
            return Prompt(ids=list(ids))
        digests = shown(messages)
        if missing := [digest for digest in digests if digest not in pictures]:
            raise ModelError(f"the conversation refers to the picture {missing[0][:12]}..., which is missing")
        return expand(ids, [pictures[digest] for digest in digests], self.vision)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._decode(list(ids)))

    def _render(self, escaped: Escaped, count: int | None = None, *, generation_prompt: bool = True) -> str:
        """The first `count` messages (all if unset) as text."""
        from jinja2 import TemplateError

        try:
            return str(
                self.tokenizer.apply_chat_template(
                    escaped.messages[:count],
                    tools=escaped.tools,  # type: ignore[arg-type]
                    chat_template=self.template,
                    tokenize=False,
                    add_generation_prompt=generation_prompt,
                    return_dict=False,
                    **self.options,
                )
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            roles = ", ".join(str(message.get("role")) for message in escaped.messages[:count])
            raise ModelError(
                f"the chat template cannot write this conversation ({roles or 'it is empty'}): {first_line(error)}"
            ) from error

    def _encode(self, text: str, escaped: Escaped) -> list[int]:
        ids: list[int] = []
        for piece, literal in escaped.pieces(text):
            ids += self._guard.encode(piece) if literal else self.encode(piece)
        return ids

    def _end_of_turn_id(self) -> int | None:
        """The control token that the template writes after a reply, if it writes one."""
        probe = "probe"
        conversation = [{"role": "user", "content": "question"}, {"role": "assistant", "content": probe}]
        escaped = self._guard.escape(conversation, None)
        rendered = self._render(escaped, generation_prompt=False)
        tail = rendered[rendered.rfind(probe) + len(probe) :].lstrip()
        first = self._encode(tail, escaped)[:1] if tail else []
        return first[0] if first and first[0] in self.tokenizer.added_tokens_decoder else None  # type: ignore[attr-defined]


def _is_plain(tokenizer: Any, *methods: str) -> bool:
    """Whether its class does these in the way of all fast tokenizers: by the backend, and nothing else."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return issubclass(kind, PreTrainedTokenizerFast) and all(
        getattr(kind, name) is getattr(PreTrainedTokenizerFast, name) for name in methods
    )


def _folder(named: str) -> Path | None:
    """The directory of a model, or of the small files of one of the hub; None if these cannot be had."""
    if Path(named).is_dir():
        return Path(named)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(named, allow_patterns=list(_SMALL_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError):
        return None


def _processors_template(folder: Path) -> str | None:
    """The template of a model that sees, where its processor has it and its tokenizer has not."""
    try:
        value = json.loads((folder / "chat_template.json").read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, str) else None


def _known_ids(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    vocabulary = tokenizer.get_vocab() if tokens else {}
    return [vocabulary[token] for token in tokens if token in vocabulary]


def _generation_config_stops(model_path: str | Path | None) -> list[int]:
    if model_path is None:
        return []
    path = Path(model_path) / "generation_config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return []
    return [stop for stop in (value if isinstance(value, list) else [value]) if type(stop) is int and stop >= 0]
