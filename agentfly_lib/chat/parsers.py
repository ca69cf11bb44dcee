"""The tool-call parsers, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentfly_lib.chat.blocks import BlockParser
from agentfly_lib.chat.deepseek import DeepSeekParser
from agentfly_lib.chat.glm import GlmParser
from agentfly_lib.chat.harmony import HarmonyParser
from agentfly_lib.chat.hermes import HermesParser
from agentfly_lib.chat.llama_json import LlamaJsonParser
from agentfly_lib.chat.mistral import MistralParser
from agentfly_lib.chat.pythonic import PythonicParser
from agentfly_lib.chat.qwen3_coder import Qwen3CoderParser
from agentfly_lib.chat.values import ParameterTypes
from agentfly_lib.errors import ConfigError
from agentfly_lib.named import near_or_all

__all__ = ["get_parser", "parser_names"]

Tools = Sequence[Mapping[str, Any]]

_PARSERS: Mapping[str, Callable[[Tools], BlockParser]] = {
    "hermes": lambda _: HermesParser(),
    "qwen3-coder": lambda tools: Qwen3CoderParser(ParameterTypes(tools)),
    "llama-json": lambda _: LlamaJsonParser(),
    "pythonic": lambda _: PythonicParser(),
    "mistral": lambda _: MistralParser(),
    "glm": lambda tools: GlmParser(ParameterTypes(tools)),
    "deepseek": lambda _: DeepSeekParser(),
    "harmony": lambda _: HarmonyParser(),
}


def parser_names() -> tuple[str, ...]:
    """Names that `get_parser` knows."""
    return tuple(_PARSERS)


def get_parser(name: str, tools: Tools = ()) -> BlockParser:
    """The parser of that name. `tools` are schemas, for formats whose values do not say their type.

    Raises `ConfigError` with the nearest name.
    """
    if name not in _PARSERS:
        raise ConfigError(f"unknown tool-call parser {name!r}: {near_or_all(name, _PARSERS)}")
    return _PARSERS[name](tools)
