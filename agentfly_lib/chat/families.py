"""What is known of the families of chat formats: which text gives one away, how turns end, how tools are called.

A model's own template always decides how its conversations are written; a family adds what a template does not say. The
templates under `chat/templates/` are for models that have none: written here from each format's published description.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agentfly_lib.errors import ModelError

__all__ = ["FAMILIES", "Family", "HistoryForm", "detect_family", "detect_parser", "family_names", "get_family"]


class HistoryForm(StrEnum):
    """In which form the template gets the replies of earlier turns."""

    TEXT = "text"
    """As the text that was sampled, calls and all: what the template writes is then what was sampled."""
    CALLS = "calls"
    """Taken apart into reasoning, content and calls, because the format writes calls with control tokens, or because
    its templates refuse a tool result that answers no call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One chat format."""

    name: str
    marker: str
    """Text that its templates cannot do without."""
    hints: tuple[str, ...] = ()
    """Text that tells it from other families with the same marker."""
    parser: str
    end_of_turn: tuple[str, ...] = ()
    """Tokens that the model ends a turn with; sampling stops at each."""
    other_stops: tuple[str, ...] = ()
    """Tokens that begin something else, at which sampling stops too."""
    rewrites_history: bool = False
    """Whether its templates write earlier turns otherwise than they were sampled (thoughts left out, tools moved)."""
    history: HistoryForm = HistoryForm.TEXT
    control_tokens: tuple[str, ...] = ()
    """What the shipped template needs to be tokens of the vocabulary, besides marker and ends of turn."""
    aliases: tuple[str, ...] = ()

    @property
    def stop_tokens(self) -> tuple[str, ...]:
        """Where sampling stops."""
        return (*self.end_of_turn, *self.other_stops)

    def writes(self, template: str) -> bool:
        """Whether a template is of this family, by the text in it."""
        return self.marker in template and all(hint in template for hint in self.hints)


_IM = "<|im_start|>"
_IM_END = ("<|im_end|>",)
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="gpt-oss",
            marker="<|channel|>",
            parser="harmony",
            end_of_turn=("<|return|>", "<|call|>"),
            rewrites_history=True,
            history=HistoryForm.CALLS,
            control_tokens=("<|start|>", "<|message|>", "<|constrain|>", "<|end|>"),
        ),
        Family(
            name="deepseek-r1",
            marker="<｜Assistant｜>",
            parser="deepseek",
            end_of_turn=("<｜end▁of▁sentence｜>",),
            rewrites_history=True,
            history=HistoryForm.CALLS,
            control_tokens=("<｜User｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁outputs▁begin｜>"),
            aliases=("deepseek", "deepseek-v3"),
        ),
        Family(
            name="llama-3",
            marker="<|start_header_id|>",
            parser="llama-json",
            end_of_turn=("<|eot_id|>", "<|eom_id|>"),
            control_tokens=("<|end_header_id|>",),
            aliases=("llama3", "llama-3.1", "llama-3.2", "llama-3.3"),
        ),
        Family(
            name="mistral",
            marker="[INST]",
            parser="mistral",
            end_of_turn=("</s>",),
            rewrites_history=True,
            history=HistoryForm.CALLS,
            control_tokens=("[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[TOOL_CONTENT]"),
        ),
        Family(
            name="gemma",
            marker="<start_of_turn>",
            parser="pythonic",
            end_of_turn=("<end_of_turn>",),
            aliases=("gemma-2", "gemma-3"),
        ),
        Family(
            name="phi-4",
            marker="<|im_sep|>",
            parser="hermes",
            end_of_turn=_IM_END,
            control_tokens=(_IM,),
        ),
        Family(
            name="glm-4",
            marker="[gMASK]",
            parser="glm",
            other_stops=("<|observation|>", "<|user|>"),
            rewrites_history=True,
            control_tokens=("<sop>", "<|assistant|>", "<|system|>"),
            aliases=("glm-4.5", "glm-4.6"),
        ),
        Family(name="qwen3-coder", marker=_IM, hints=("<function=",), parser="qwen3-coder", end_of_turn=_IM_END),
        Family(
            name="qwen2.5-vl",
            marker=_IM,
            hints=("<|vision_start|>", "You are a helpful assistant."),
            parser="hermes",
            end_of_turn=_IM_END,
            control_tokens=_VISION,
        ),
        Family(
            name="qwen3-vl",
            marker=_IM,
            hints=("<|vision_start|>",),
            parser="hermes",
            end_of_turn=_IM_END,
            control_tokens=_VISION,
        ),
        Family(
            name="qwen3",
            marker=_IM,
            hints=("<think>",),
            parser="hermes",
            end_of_turn=_IM_END,
            rewrites_history=True,
        ),
        Family(name="qwen2.5", marker=_IM, hints=("<tool_call>",), parser="hermes", end_of_turn=_IM_END),
        Family(name="chatml", marker=_IM, parser="hermes", end_of_turn=_IM_END),
    )
}
"""By name, in the order in which a template is compared with them."""

_PARSER_BY_MARKUP = (
    ("<|channel|>", "harmony"),
    ("<function=", "qwen3-coder"),
    ("<arg_key>", "glm"),
    ("<｜tool▁call▁begin｜>", "deepseek"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("[func_name1(", "pythonic"),
)
"""What a template that tells the model how to call tools gives away."""


def family_names() -> tuple[str, ...]:
    """Names and aliases of all families."""
    return tuple(name for family in FAMILIES.values() for name in (family.name, *family.aliases))


def get_family(name: str) -> Family:
    """The family of that name or alias. Raises `ModelError` with the nearest name."""
    for family in FAMILIES.values():
        if name in (family.name, *family.aliases):
            return family
    near = difflib.get_close_matches(name, family_names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(FAMILIES)}"
    raise ModelError(f"unknown chat template {name!r} (give the path of a .jinja file): {hint}")


def detect_family(template: str) -> Family | None:
    """The family that a template is of, or None if it is of none that we know."""
    return next((family for family in FAMILIES.values() if family.writes(template)), None)


def detect_parser(template: str, family: Family | None) -> str:
    """The parser for what a template teaches the model to write; without a sign of it, the family's, else Hermes."""
    for markup, parser in _PARSER_BY_MARKUP:
        if markup in template:
            return parser
    return family.parser if family is not None else "hermes"
