"""Which Jinja chat template to use: the model's own, one of its named ones, a family's name, or a file.

A family's name (`chat.families`) asserts what kind of template the model must have and never replaces it, because a
model is trained on its own wording. A model without a template gets the family's shipped one, if its vocabulary has the
family's control tokens. `shipped:NAME` takes the shipped one whatever the model has, for models whose own template
knows no tools.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentfly_lib.chat.families import FAMILIES, Family, detect_family, get_family
from agentfly_lib.errors import ModelError

__all__ = ["find_template", "is_shipped", "own_template", "own_templates", "shipped_template"]

_SHIPPED = "shipped:"


def find_template(tokenizer: Any, template: str | None, *, where: str) -> tuple[str | None, Family | None]:
    """Jinja source to use in place of the tokenizer's own (None for its own), and the family. Raises `ModelError`."""
    own = tokenizer.chat_template
    if template is None:
        if not own:
            raise ModelError(
                f"{where} has no chat template, so conversations cannot be rendered for it. Use an instruct model, or "
                "give agent.template: 'chatml', or the path of a .jinja file"
            )
        return None, detect_family(own_template(tokenizer))
    if isinstance(own, dict) and template in own:
        return str(own[template]), detect_family(str(own[template]))
    if template.endswith((".jinja", ".j2")):
        try:
            source = Path(template).read_text(encoding="utf-8")
        except OSError as error:
            raise ModelError(f"cannot read the chat template {template}: {error.strerror}") from error
        return source, detect_family(source)
    family = get_family(template.removeprefix(_SHIPPED))
    if template.startswith(_SHIPPED) or not own:
        return _usable_shipped_template(family, tokenizer, where), family
    sources = list(own.values()) if isinstance(own, dict) else [own]
    if not any(family.marker in source for source in sources):
        raise ModelError(
            f"template={template!r} was asked for, but the chat template of {where} never writes {family.marker}; "
            "leave the template unset to use the model's own"
        )
    return None, family


def own_template(tokenizer: Any) -> str:
    """Source of the tokenizer's own template, the one with tools if it has several."""
    own = tokenizer.chat_template
    if isinstance(own, dict):
        own = own.get("tool_use") or own.get("default") or next(iter(own.values()), "")
    return str(own or "")


def own_templates(tokenizer: Any) -> list[str]:
    """Sources of all the tokenizer's own templates: which of them is used, the conversation decides."""
    own = tokenizer.chat_template
    return [str(source) for source in (own.values() if isinstance(own, dict) else [own]) if source]


def is_shipped(source: str) -> bool:
    """Whether it is one of ours, word for word."""
    return source in _shipped_sources()


@functools.cache
def _shipped_sources() -> frozenset[str]:
    folder = files("agentfly_lib.chat") / "templates"
    return frozenset(each.read_text(encoding="utf-8") for each in folder.iterdir() if each.name.endswith(".jinja"))


def shipped_template(name: str) -> str:
    """Source of a family's shipped template. Raises `ModelError` if none is shipped."""
    family = get_family(name)
    source = files("agentfly_lib.chat") / "templates" / f"{family.name}.jinja"
    if not source.is_file():
        shipped = [each for each in FAMILIES if (source.parent / f"{each}.jinja").is_file()]  # type: ignore[attr-defined]
        raise ModelError(f"there is no built-in template for {family.name}; choose from: {', '.join(shipped)}")
    return source.read_text(encoding="utf-8")


def _usable_shipped_template(family: Family, tokenizer: Any, where: str) -> str:
    source = shipped_template(family.name)
    if family.name == "chatml":
        return source  # for base models of any vocabulary: what are no tokens there is text
    vocabulary = tokenizer.get_vocab()
    missing = [
        token for token in (family.marker, *family.end_of_turn[:1], *family.control_tokens) if token not in vocabulary
    ]
    if missing:
        raise ModelError(
            f"the shipped template {family.name!r} needs tokens that the vocabulary of {where} does not have: "
            f"{', '.join(missing)}; try 'chatml'"
        )
    return source
