"""Which agent acts: its kind, prompt, tools, reward and limits, and what it does when its context is nearly full."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from agentfly_lib.configs.base import Config, FreeSettings

__all__ = [
    "AgentConfig",
    "AgentSettings",
    "CodeAgentConfig",
    "CompactionConfig",
    "CustomAgentConfig",
    "EnvironmentChoice",
    "EnvironmentConfig",
    "GUIAgentConfig",
    "HFAgentConfig",
    "ImageAgentConfig",
    "McpServerConfig",
    "NoCompactionConfig",
    "ReActAgentConfig",
    "RewardConfig",
    "RewardPartConfig",
    "SearchAgentConfig",
    "SlidingWindowConfig",
    "SummaryConfig",
]

SUMMARY_INSTRUCTION = (
    "The context is nearly full and will be cleared. Write down everything that is needed to go on with the task: what "
    "was done, what was found (exact numbers, names and quotations), and what is left to do. Call no tool."
)


class RewardPartConfig(Config):
    """One reward of a weighted sum."""

    name: str
    """A reward we ship, or `package.module:name`."""
    weight: float = 1.0
    """Factor of this part in the sum."""
    optional: bool = False
    """If it cannot be scored, the others are scored without it; otherwise nothing is."""
    label: str | None = None
    """Its name in the recorded parts; unset means the reward's own."""
    settings: FreeSettings = Field(default_factory=dict)
    """What this reward is made with, for those that are made with something."""


class RewardConfig(Config):
    """How trajectories are scored."""

    name: str = "math_equal"
    """A reward we ship, or `package.module:name` of a function decorated with `@reward`; with `parts`, what their sum
    is called. For an agent in an environment it is `environment` unless a recipe says otherwise."""
    settings: FreeSettings = Field(default_factory=dict)
    """What the reward is made with, for those that are made with something."""
    parts: tuple[RewardPartConfig, ...] = ()
    """Several rewards, whose weighted sum is the reward."""
    timeout_seconds: PositiveFloat = 30.0
    """Limit for one trajectory; a reward that runs longer is killed and the trajectory is dropped, never given 0."""
    max_concurrency: PositiveInt = 64
    """Rewards in flight at the same time."""
    retries: Annotated[int, Field(ge=0)] = 1
    """Tries after the first when a reward raises."""

    @model_validator(mode="before")
    @classmethod
    def _sum_has_a_name(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("parts"):
            return {"name": "composite"} | dict(values)
        return values

    @model_validator(mode="after")
    def _settings_of_one(self) -> RewardConfig:
        if self.parts and self.settings:
            raise ValueError("settings belong to the parts here; write them into the part that they are for")
        return self

    @property
    def identity(self) -> str:
        """The name, and a hash of what else decides about the values: scores are kept by this."""
        if not self.parts and not self.settings:
            return self.name
        decisive = self.model_dump_json(include={"settings", "parts"})
        return f"{self.name}-{hashlib.sha256(decisive.encode()).hexdigest()[:8]}"


class EnvironmentChoice(Config):
    """Which environment, and where it runs."""

    name: str
    """An environment we ship, one that a package has installed, or `package.module:KIND`."""
    settings: FreeSettings = Field(default_factory=dict)
    """What the environment is made with; its page lists the keys."""
    place: Literal["process", "thread"] | None = None
    """Where it runs; unset: where the environment says."""
    url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")] | None = None
    """A server that runs it, with these settings: `python -m agentfly_lib.envs.host --http PORT --kind NAME`."""


class EnvironmentConfig(EnvironmentChoice):
    """Where the agent acts: its actions become the agent's tools, and its prompt and its reward stand where the recipe
    gives none."""

    warm: Annotated[int, Field(ge=0)] = 2
    """So many are kept ready between trajectories."""
    cap: PositiveInt = 32
    """Most that exist at the same time; a trajectory that needs another waits for its turn."""

    @model_validator(mode="after")
    def _fits(self) -> EnvironmentConfig:
        if self.warm > self.cap:
            raise ValueError(f"warm={self.warm} is more than cap={self.cap}, the most that may exist")
        return self


_SECRET_HEADER = re.compile(r"authorization$|^cookie$|(^|[-_])(api[-_]?key|token|secret|password)$", re.IGNORECASE)


class McpServerConfig(Config):
    """An MCP server, whose tools become the agent's: a program (`command`) or an address (`url`)."""

    command: Annotated[str, Field(min_length=1)] | None = None
    """A program that is started for each trajectory and spoken to through its standard input and output."""
    args: tuple[str, ...] = ()
    """Arguments of `command`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Its environment, on top of a few harmless variables; nothing else of ours reaches it. Written into the run
    directory, so not the place for secrets."""
    pass_env: tuple[str, ...] = ()
    """Variables of our own environment that it gets too: secrets, by name."""
    folder: Path | None = None
    """Where it is started."""
    url: Annotated[str, Field(pattern=r"^https?://.")] | None = None
    """Of a server that is reached by streamable HTTP; each trajectory has a session of its own."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers of every request. Written into the run directory, so not the place for secrets."""
    headers_env: dict[str, str] = Field(default_factory=dict)
    """More headers, by the variables of our own environment that hold them: secrets, by name."""
    token_env: str | None = None
    """Variable of our own environment that holds a bearer token for it."""
    tools: tuple[str, ...] | None = None
    """The ones wanted, by the server's names; unset means all."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = ""
    """Put before their names, where two servers use the same ones."""
    timeout_seconds: PositiveFloat | None = None
    """Limit of a call; unset means the agent's."""
    start_seconds: PositiveFloat = 30.0
    """Limit for reaching it and for hearing which tools it has."""

    @model_validator(mode="after")
    def _one_kind(self) -> McpServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("give command, for a program, or url, for a server that runs already, and not both")
        if secret := next((name for name in self.headers if _SECRET_HEADER.search(name)), None):
            raise ValueError(
                f"headers.{secret} is a secret, and a recipe is stored and shown: name the variable that holds it, "
                "with token_env or headers_env"
            )
        others = ("headers", "headers_env", "token_env") if self.url is None else ("args", "env", "pass_env", "folder")
        for key in others:
            if getattr(self, key):
                raise ValueError(f"{key} is for a server with {'url' if self.url is None else 'command'}")
        return self


class NoCompactionConfig(Config):
    """A full context ends the trajectory."""

    type: Literal["none"] = "none"


class SlidingWindowConfig(Config):
    """The oldest turns are left out of a new segment; the first prompt and the newest turns stay."""

    type: Literal["sliding_window"] = "sliding_window"
    start_at: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the context that is used when it happens."""
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the context that the new segment's prompt may take."""

    @model_validator(mode="after")
    def _shrinks(self) -> SlidingWindowConfig:
        if self.keep >= self.start_at:
            raise ValueError(f"keep={self.keep} must be less than start_at={self.start_at}, or nothing is won")
        return self


class SummaryConfig(Config):
    """The policy writes a summary, which is trained on, and goes on from it in a new segment.

    Where the context has no room left for one, the oldest turns are left out instead, as in `sliding_window`.
    """

    type: Literal["summary"] = "summary"
    start_at: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Share of the context that is used when it happens; the rest must hold the instruction and the summary."""
    max_tokens: PositiveInt = 512
    """Longest summary."""
    instruction: Annotated[str, Field(min_length=1)] = SUMMARY_INSTRUCTION
    """What the policy is told."""


CompactionConfig = Annotated[NoCompactionConfig | SlidingWindowConfig | SummaryConfig, Field(discriminator="type")]


class AgentSettings(Config):
    """What every kind of agent has."""

    template: str | None = None
    """Name of a template family; unset means the model's own chat template."""
    thinking: bool | None = None
    """Whether the model reasons before it answers, where its template can switch that; unset leaves it as it is."""
    system_prompt: str | None = None
    """Put before a problem's messages, unless they begin with a system message; unset: the environment's prompt, if
    any."""
    environment: EnvironmentConfig | None = None
    """Where the agent acts, if it does so in an environment."""
    tools: tuple[str, ...] = ("calculator",)
    """Tools we ship, or `package.module:name`. With an environment or MCP servers, whose tools the agent has anyway,
    the default is none."""
    mcp_servers: tuple[McpServerConfig, ...] = ()
    """Servers whose tools the agent has too."""
    tool_settings: dict[str, FreeSettings] = Field(default_factory=dict)
    """By a tool's name: what that tool is made with; its documentation lists the keys."""
    reward: RewardConfig = RewardConfig()
    """How trajectories are scored."""
    max_turns: PositiveInt = 3
    """Turns that the policy may take."""
    tool_timeout_seconds: PositiveFloat = 30.0
    """Limit of a tool call whose tool sets none of its own."""
    max_tool_chars: PositiveInt = 4096
    """Longer tool results are cut with a mark, where the tool sets no limit of its own."""
    max_calls_per_turn: Annotated[int, Field(ge=1, le=128)] = 32
    """Tool calls of one turn that are run; those beyond are refused, and the policy is told."""
    compaction: CompactionConfig = NoCompactionConfig()
    """What happens when the context is nearly full."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_environment_has_it(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = dict(values)
        if values.get("environment") is not None or values.get("mcp_servers"):
            given = {"tools": ()} | given
        if values.get("environment") is not None:
            given = {"reward": {"name": "environment"}} | given
        return given


class HFAgentConfig(AgentSettings):
    """Calls tools in the model's own format."""

    type: Literal["hf"] = "hf"
    parser: str | None = None
    """Which tool-call parser reads replies (`agentfly_lib.chat.parser_names`); unset: what the template teaches."""


class ImageAgentConfig(AgentSettings):
    """As `hf`, for models that see: images of the problem and of tools reach the prompt."""

    type: Literal["image"] = "image"
    parser: str | None = None
    """As for `hf`."""


class ReActAgentConfig(AgentSettings):
    """Acts in words: Thought, Action, Action Input, and in the end Final Answer."""

    type: Literal["react"] = "react"


class CodeAgentConfig(AgentSettings):
    """Writes code blocks, which an interpreter answers."""

    type: Literal["code"] = "code"
    tools: tuple[str, ...] = ("code_interpreter",)
    """Tools we ship, or `package.module:name`; one of them runs the code blocks."""


class SearchAgentConfig(AgentSettings):
    """Asks in `<search>`, reads `<information>`, ends with `<answer>`."""

    type: Literal["search"] = "search"
    tools: tuple[str, ...] = ("web_search",)
    """Tools we ship, or `package.module:name`; one of them answers the searches."""


class GUIAgentConfig(AgentSettings):
    """Clicks, types and scrolls on a screen."""

    type: Literal["gui"] = "gui"
    tools: tuple[str, ...] = ()
    """One per action, named as the action is."""
    screen_width: PositiveInt = 1280
    """Pixels."""
    screen_height: PositiveInt = 720
    """Pixels."""


class CustomAgentConfig(AgentSettings):
    """An agent class of one's own."""

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """`package.module:ClassName` of a subclass of `agentfly_lib.agents.Agent`."""
    options: FreeSettings = Field(default_factory=dict)
    """Arguments of the class's own, beside those that every agent takes."""


def agent_type(value: Any) -> Any:
    """The variant that a table or a config asks for; `hf` where a table does not say."""
    return value.get("type", "hf") if isinstance(value, Mapping) else getattr(value, "type", None)


AgentConfig = Annotated[
    Annotated[HFAgentConfig, Tag("hf")]
    | Annotated[ReActAgentConfig, Tag("react")]
    | Annotated[CodeAgentConfig, Tag("code")]
    | Annotated[SearchAgentConfig, Tag("search")]
    | Annotated[ImageAgentConfig, Tag("image")]
    | Annotated[GUIAgentConfig, Tag("gui")]
    | Annotated[CustomAgentConfig, Tag("custom")],
    Discriminator(agent_type),
]
"""An agent, as a recipe names it."""
