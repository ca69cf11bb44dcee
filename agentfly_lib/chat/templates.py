"""Which Jinja chat template to use: the model's own, one of its named ones, a family's name, or a file.

Family names (`qwen2.5`, `qwen3`, `llama3`, `chatml`) assert what kind of template the model must have; they never
replace it, because a model is trained on its own wording. Only `chatml` brings a template along, for base models that
have none.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from agentfly_lib.errors import ModelError

__all__ = ["CHATML", "find_template"]

CHATML = """\
{%- if messages[0].role == 'system' %}
    {%- set system, rest = messages[0].content, messages[1:] %}
{%- else %}
    {%- set system, rest = '', messages %}
{%- endif %}
{%- if system or tools %}
    {{- '<|im_start|>system\\n' + system }}
    {%- if tools %}
        {{- '\\n\\n' if system else '' }}
        {{- 'You can call tools. Their signatures, one JSON object a line:\\n<tools>\\n' }}
        {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
        {{- '</tools>\\nTo call one, write:\\n<tool_call>\\n{"name": "NAME", "arguments": {...}}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_FAMILIES = {
    "chatml": "<|im_start|>",
    "qwen2.5": "<|im_start|>",
    "qwen3": "<|im_start|>",
    "llama3": "<|start_header_id|>",
    "gemma": "<start_of_turn>",
    "mistral": "[INST]",
}
"""From a family's name to the text that its templates cannot do without."""


def find_template(tokenizer: Any, template: str | None, *, where: str) -> str | None:
    """Jinja source to use in place of the tokenizer's own, or None for its own. Raises `ModelError`."""
    own = tokenizer.chat_template
    if template is None:
        if not own:
            raise ModelError(
                f"{where} has no chat template, so conversations cannot be written for it. Use an instruct model, or "
                "give agent.template: 'chatml', or the path of a .jinja file"
            )
        return None
    if isinstance(own, dict) and template in own:
        return str(own[template])
    if template.endswith((".jinja", ".j2")):
        try:
            return Path(template).read_text(encoding="utf-8")
        except OSError as error:
            raise ModelError(f"cannot read the chat template {template}: {error.strerror}") from error
    if template not in _FAMILIES:
        names = [*_FAMILIES, *(own if isinstance(own, dict) else ())]
        near = difflib.get_close_matches(template, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(sorted(names))}"
        raise ModelError(f"unknown chat template {template!r} (a .jinja file is named by its path): {hint}")
    if not own:
        if template != "chatml":
            raise ModelError(f"{where} has no chat template, so template={template!r} cannot be used; try 'chatml'")
        return CHATML
    marker = _FAMILIES[template]
    sources = list(own.values()) if isinstance(own, dict) else [own]
    if not any(marker in source for source in sources):
        raise ModelError(
            f"template={template!r} was asked for, but the chat template of {where} never writes {marker}; "
            "leave the template unset to use the model's own"
        )
    return None
