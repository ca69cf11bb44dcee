"""`HFAgent`: calls tools in the model's own format, as its chat template teaches it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentfly_lib.agents.agent import Agent
from agentfly_lib.chat import CallParser, ParsedReply, StreamParser, get_parser
from agentfly_lib.chat.blocks import BlockParser
from agentfly_lib.configs.agent import AgentSettings, HFAgentConfig, ImageAgentConfig
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.tools import Tool

__all__ = ["HFAgent"]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class HFAgent(Agent):
    """An agent around a Hugging Face model; the template shows it the tools."""

    parser: CallParser

    def __init__(
        self,
        model_name_or_path: str | Path,
        tools: Iterable[Tool | str] | None = None,
        *,
        reward_fn: Reward | str | None = None,
        template: str | None = None,
        system_prompt: str | None = None,
        backend_config: Mapping[str, Any] | None = None,
        parser: CallParser | str | None = None,
        **options: Any,
    ) -> None:
        """As any `Agent`; `parser` is one of `chat.parser_names()`, or your own; unset: for what the template teaches.

        Raises `ConfigError` for an unknown parser, and what `Agent` raises.
        """
        super().__init__(
            model_name_or_path,
            tools,
            reward_fn=reward_fn,
            template=template,
            system_prompt=system_prompt,
            backend_config=backend_config,
            **options,
        )
        if parser is None or isinstance(parser, str):
            parser = get_parser(parser or self.chat.parser, self.schemas)
        self._freeze(parser=parser)

    @classmethod
    def from_config(cls, config: AgentSettings, model_name_or_path: str | Path, **options: Any) -> Self:
        """As for any agent, with the config's parser."""
        if isinstance(config, HFAgentConfig | ImageAgentConfig):
            options = {"parser": config.parser} | options
        return super().from_config(config, model_name_or_path, **options)

    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart."""
        return self.parser.parse(text)

    def stream_parser(self) -> StreamParser | None:
        """Shows content alone, if the parser reads blocks."""
        return StreamParser(self.parser) if isinstance(self.parser, BlockParser) else None
