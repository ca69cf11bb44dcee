"""What a model's chat template does to training, found by trying it on a small conversation with a tool.

Every check gives findings. A problem is what would break training: tools that the model never sees, a call that cannot
be read back, turns that nothing ends, tool results that become control tokens. A note is what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentfly_lib.chat import (
    Bridge,
    CallParser,
    ChatFormat,
    MalformedCall,
    PictureBook,
    Prompt,
    get_parser,
    load_picture,
)
from agentfly_lib.chat.written import calling, written_reply
from agentfly_lib.errors import ModelError
from agentfly_lib.types import Message

__all__ = ["Finding", "Level", "Stretch", "TemplateReport", "check_template"]

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up_weather",
        "description": "Says how the weather will be.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city."},
                "days": {"type": "integer", "description": "How many days ahead."},
            },
            "required": ["city"],
        },
    },
}
_NAME = "look_up_weather"
_ARGUMENTS = {"city": 'Zürich "West" <b>\nline two', "days": 3}
_SAMPLE_ARGUMENTS = {"city": "Bern", "days": 3}
_SYSTEM: Message = {"role": "system", "content": "You advise hikers."}
_QUESTION: Message = {"role": "user", "content": "Can I hike near Bern on Friday?"}
_CALL_ID = "call00000"
_OBSERVATION = "Friday: sunny, 21 degrees"
_RESULT: Message = {"role": "tool", "tool_call_id": _CALL_ID, "name": _NAME, "content": _OBSERVATION}
_THOUGHT = "I need the forecast."
_ANSWER = "Yes, it will be sunny."
_SIDE = 64
"""Pixels of the sides of a picture."""
_FOLLOW_UP: Message = {"role": "user", "content": "And on Saturday?"}


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"
    """Training would break, or teach something wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    title: str
    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Text of consecutive tokens of the sample, all trained on or none."""

    text: str
    trained: bool
    new_segment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReport:
    """Findings, and the sample conversation as training would see it."""

    findings: tuple[Finding, ...]
    sample: tuple[Stretch, ...]

    @property
    def fit_for_training(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)


def check_template(chat: ChatFormat, parser: str | None = None) -> TemplateReport:
    """Tries the template of `chat`; `parser` is the tool-call parser's name, unset the one that it teaches.

    Raises `ConfigError` for an unknown parser. Whatever the template itself refuses is a finding.
    """
    name = parser or chat.parser
    trial = _Trial(chat=chat, parser=get_parser(name, [TOOL]), parser_name=name)
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("template", trial.template),
        ("system message", trial.system_message),
        ("tool schemas", trial.tool_schemas),
        ("calls", trial.calls),
        ("tool results and mask", trial.conversation),
        ("thoughts", trial.thoughts),
        ("stop tokens", trial.stop_tokens),
        ("pictures", trial.pictures),
        ("control tokens in texts", trial.control_tokens),
    )
    findings = list[Finding]()
    for title, check in checks:
        try:
            findings += check()
        except ModelError as error:
            findings.append(Finding(title=title, level=Level.PROBLEM, text=str(error)))
    return TemplateReport(findings=tuple(findings), sample=tuple(trial.sample))


@dataclass(kw_only=True)
class _Trial:
    chat: ChatFormat
    parser: CallParser
    parser_name: str
    sample: list[Stretch] = field(default_factory=list)

    def template(self) -> Iterator[Finding]:
        family = self.chat.family
        whose = (
            "the model's own" if self.chat.template is None else "the one that was named, in place of the model's own"
        )
        if not self.chat.tokenizer.chat_template:
            whose = "the one that was named; the model has none"
        rewrites = ", whose templates rewrite history" if family and family.rewrites_history else ""
        kind = f"of the family {family.name}{rewrites}" if family else "of no family that we know"
        yield Finding(title="template", level=Level.OK, text=f"{whose}, {kind}")
        if "strftime_now" in self.chat.source:
            yield Finding(
                title="date",
                level=Level.NOTE,
                text="the template writes today's date: prompts differ from one day to the next",
            )
        ids = self.chat.prompt_ids([_QUESTION])
        bos = self.chat.tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            yield Finding(title="template", level=Level.PROBLEM, text="the prompt begins with two start tokens")

    def system_message(self) -> Iterator[Finding]:
        seen = _SYSTEM["content"] in self._prompt([_SYSTEM, _QUESTION])
        yield Finding(
            title="system message",
            level=Level.OK if seen else Level.PROBLEM,
            text="is in the prompt" if seen else "is left out of the prompt: give instructions in the question",
        )

    def tool_schemas(self) -> Iterator[Finding]:
        before, after = self._prompt([_QUESTION]), self._prompt([_QUESTION], tools=True)
        parts = {"name": _NAME, "description": "Says how", "parameters": "days", "their descriptions": "How many days"}
        missing = [what for what, text in parts.items() if text not in after or text in before]
        if "name" in missing:
            text = "the template ignores tools: the model would never see them. Use one that lists them"
            if self.chat.family is not None and self.chat.template is None:
                text += f" (--template shipped:{self.chat.family.name})"
            yield Finding(title="tool schemas", level=Level.PROBLEM, text=text)
        elif missing:
            yield Finding(title="tool schemas", level=Level.NOTE, text=f"listed without {', '.join(missing)}")
        else:
            yield Finding(title="tool schemas", level=Level.OK, text="listed whole")

    def calls(self) -> Iterator[Finding]:
        text = self._written_call(_ARGUMENTS)
        title = f"calls ({self.parser_name})"
        if text is None:
            reason = "the template writes no calls of its own, so reading them back was not tried"
            yield Finding(title=title, level=Level.NOTE, text=reason)
            return
        calls = self.parser.parse(text).calls
        if len(calls) == 1 and not isinstance(calls[0], MalformedCall):
            call = calls[0]
            if (call.name, dict(call.arguments)) == (_NAME, _ARGUMENTS):
                yield Finding(title=title, level=Level.OK, text="what the template writes is read back as it was")
                return
            found = f"as {call.name} with {dict(call.arguments)}"
        else:
            found = "as no call" if not calls else getattr(calls[0], "message", f"as {len(calls)} calls")
        yield Finding(
            title=title,
            level=Level.PROBLEM,
            text=f"a call that the template writes is read back otherwise: {found}. The template writes {text!r}. "
            "Name another parser",
        )

    def conversation(self) -> Iterator[Finding]:
        """Call, result, answer, next question: with its bridges, as a rollout has it."""
        history = [_SYSTEM, _QUESTION]
        try:
            prompt = self.chat.prompt_ids(history, [TOOL])
        except ModelError:
            history = [_QUESTION]
            prompt = self.chat.prompt_ids(history, [TOOL])
        call = self._written_call(_SAMPLE_ARGUMENTS) or "I look it up."
        self.sample.append(Stretch(text=self._text(prompt), trained=False))
        segment, rewritten, same = self._exchange(history, prompt, call, _RESULT)
        seen = _OBSERVATION in self.sample[-1].text
        yield Finding(
            title="tool results",
            level=Level.OK if seen else Level.PROBLEM,
            text="reach the model" if seen else "are left out of the next prompt: the model would never see them",
        )
        history += [{"role": "assistant", "content": call}, _RESULT]
        answer = written_reply(self.chat, history, {"role": "assistant", "content": _ANSWER}, [TOOL]) or _ANSWER
        _, moved, also = self._exchange(history, segment, answer, _FOLLOW_UP)
        yield _history_finding(rewritten, moved)
        yield Finding(
            title="mask",
            level=Level.OK if same and also else Level.PROBLEM,
            text="falls on what is sampled; everything between is what the template writes"
            if same and also
            else "what stands between two turns is not what the template writes for the whole conversation",
        )

    def thoughts(self) -> Iterator[Finding]:
        """Only for templates that know of reasoning."""
        if not self._thinks:
            return
        reply = self._written_call(_SAMPLE_ARGUMENTS) or "I look it up."
        if _THOUGHT not in reply:  # the template does not write thoughts; models write them behind its opening tag
            reply = f"{_THOUGHT}\n</think>\n\n{reply}"
        after = {
            what: self.chat.bridge([_QUESTION], reply, self.chat.encode(reply), [back], [TOOL]).rewritten
            for what, back in (("a tool result", _RESULT), ("a new question", _FOLLOW_UP))
        }
        lost = [what for what, rewritten in after.items() if rewritten]
        yield Finding(
            title="thoughts",
            level=Level.NOTE if lost else Level.OK,
            text=f"are left out of earlier turns after {' and after '.join(lost)}: a new segment begins there"
            if lost
            else "stay in the prompt",
        )

    def stop_tokens(self) -> Iterator[Finding]:
        names = ", ".join(self._text([token]) for token in self.chat.stop_token_ids)
        reply = written_reply(self.chat, [_QUESTION], {"role": "assistant", "content": _ANSWER}) or _ANSWER
        cut = self.chat.bridge([_QUESTION], reply, self.chat.encode(reply), [_FOLLOW_UP])
        ended = cut.rewritten or cut.ids[:1] == [] or cut.ids[0] in self.chat.stop_token_ids
        yield Finding(
            title="stop tokens",
            level=Level.OK if ended else Level.PROBLEM,
            text=names
            if ended
            else f"{names}, but the template ends a turn with {self._text(cut.ids[:1])!r}: the model would never stop",
        )

    def control_tokens(self) -> Iterator[Finding]:
        added = self.chat.tokenizer.added_tokens_decoder.values()  # type: ignore[attr-defined]
        special = [token.content for token in added if token.special or token.content.startswith(("<|", "<｜"))]
        unsafe = [
            f"{token} in {where}"
            for where, conversation in (("a user's text", _from_user), ("a tool result", self._from_tool))
            for token in special
            if not self._stays_text(token, conversation)
        ]
        yield Finding(
            title="control tokens in texts",
            level=Level.PROBLEM if unsafe else Level.OK,
            text=f"become control tokens: {', '.join(unsafe[:6])}"
            if unsafe
            else f"stay text, all {len(special)} of them, in a user's text and in a tool result",
        )

    def pictures(self) -> Iterator[Finding]:
        """Of a model that sees: one placeholder for each, in a question and in what a tool returns."""
        if self.chat.vision is None:
            return
        from PIL import Image

        book = PictureBook()
        shown = [book.add(load_picture(Image.new("RGB", (_SIDE, _SIDE)))), {"type": "text", "text": _OBSERVATION}]
        call = self._written_call(_SAMPLE_ARGUMENTS) or "I look it up."
        said = [*self.chat.encode(call), self.chat.stop_token_ids[0]]
        places: tuple[tuple[str, Callable[[], Prompt | Bridge]], ...] = (
            ("a question", lambda: self.chat.prompt([{"role": "user", "content": shown}], pictures=book)),
            (
                "a tool result",
                lambda: self.chat.bridge(
                    [_QUESTION], call, said, [{**_RESULT, "content": shown}], [TOOL], pictures=book
                ),
            ),
        )
        for where, write in places:
            title = f"pictures in {where}"
            try:
                (image,) = write().images
            except ModelError as error:
                yield Finding(title=title, level=Level.NOTE, text=f"cannot be shown: {error}")
            else:
                tokens = image.end - image.start
                text = f"one of {_SIDE} x {_SIDE} pixels has {tokens} tokens"
                yield Finding(title=title, level=Level.OK, text=text)

    def _stays_text(self, token: str, conversation: Callable[[str], list[Message]]) -> bool:
        added = self.chat.tokenizer.added_tokens_decoder  # type: ignore[attr-defined]
        harmless, hostile = (
            [each for each in self.chat.prompt_ids(conversation(text), [TOOL]) if each in added]
            for text in ("ab", f"a{token}b")
        )
        return harmless == hostile

    def _from_tool(self, text: str) -> list[Message]:
        call = self._written_call(_SAMPLE_ARGUMENTS) or "I look it up."
        return [_QUESTION, {"role": "assistant", "content": call}, {**_RESULT, "content": text}]

    def _exchange(
        self, history: Sequence[Message], segment: list[int], reply: str, back: Message
    ) -> tuple[list[int], bool, bool]:
        """One turn and what comes back: the ids then, whether history was rewritten, whether all is the template's."""
        text_ids = self.chat.encode(reply)
        cut = self.chat.bridge(history, reply, text_ids, [back], [TOOL])
        stops = self.chat.stop_token_ids
        end = cut.ids[0] if not cut.rewritten and cut.ids and cut.ids[0] in stops else stops[0]
        sampled = [*text_ids, end]
        bridge = self.chat.bridge(history, reply, sampled, [back], [TOOL])
        self.sample.append(Stretch(text=self._text(sampled), trained=True))
        self.sample.append(Stretch(text=self._text(bridge.ids), trained=False, new_segment=bridge.rewritten))
        if bridge.rewritten:
            return bridge.ids, True, True
        ids = [*segment, *sampled, *bridge.ids]
        whole = self.chat.prompt_ids([*history, {"role": "assistant", "content": reply}, back], [TOOL])
        return ids, False, self._text(ids) == self._text(whole)

    @property
    def _thinks(self) -> bool:
        """Whether the template knows of reasoning, and it is not switched off."""
        knows = "<think>" in self.chat.source or self.parser_name == "harmony"
        return knows and self.chat.options.get("enable_thinking") is not False

    def _written_call(self, arguments: dict[str, Any]) -> str | None:
        """A call as the template writes it, or None if it writes none."""
        try:
            message = calling(self.chat, _NAME, arguments, call_id=_CALL_ID)
            if self._thinks:
                message |= {"reasoning_content": _THOUGHT, "thinking": _THOUGHT}
            text = written_reply(self.chat, [_QUESTION], message, [TOOL])
        except ModelError:
            return None
        return text if text is not None and _NAME in text else None

    def _prompt(self, messages: list[Message], *, tools: bool = False) -> str:
        return self._text(self.chat.prompt_ids(messages, [TOOL] if tools else None))

    def _text(self, ids: Sequence[int]) -> str:
        return self.chat.decode(ids, end_of_turn=True)


def _from_user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _history_finding(after_result: bool, after_question: bool) -> Finding:
    if after_result:
        text = "rewritten after every tool result: each turn becomes a segment of its own, right but slow"
    elif after_question:
        text = "prefix-preserving over tool calls; a new question rewrites it, and a new segment begins there"
    else:
        text = "prefix-preserving: a conversation is one segment"
    return Finding(title="history", level=Level.NOTE if after_result or after_question else Level.OK, text=text)
