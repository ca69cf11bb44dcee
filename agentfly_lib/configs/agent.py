"""Which agent acts: its type, prompt, tools, reward and limits, and what it does when its context is nearly full."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from agentfly_lib.configs.base import Config, FreeSettings, SecretError

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
    """A built-in reward, or `package.module:name`."""
    weight: float = 1.0
    """Weight of this part in the sum."""
    optional: bool = False
    """If this part cannot be scored, the trajectory is scored without it. Otherwise the trajectory gets no score."""
    label: str | None = None
    """Name of this part in the recorded scores; unset means the reward's own name."""
    settings: FreeSettings = Field(default_factory=dict)
    """Settings of this reward, if it takes any."""


class RewardConfig(Config):
    """How trajectories are scored."""

    name: str = "math_equal"
    """A built-in reward, or `package.module:name` of a function decorated with `@reward`. With `parts`, the name of
    their sum. The default for an agent in an environment is `environment`."""
    settings: FreeSettings = Field(default_factory=dict)
    """Settings of the reward, if it takes any."""
    parts: tuple[RewardPartConfig, ...] = ()
    """Several rewards, whose weighted sum is the reward."""
    timeout_seconds: PositiveFloat = 30.0
    """Time limit for scoring one trajectory. A reward that takes longer is killed, and the trajectory is dropped rather
    than given 0."""
    max_concurrency: PositiveInt = 64
    """Maximum number of trajectories scored at the same time."""
    retries: Annotated[int, Field(ge=0)] = 1
    """Further attempts when a reward raises an exception."""

    @model_validator(mode="before")
    @classmethod
    def _sum_has_a_name(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("parts"):
            return {"name": "composite"} | dict(values)
        return values

    @model_validator(mode="after")
    def _settings_of_one(self) -> RewardConfig:
        if self.parts and self.settings:
            raise ValueError("with parts, settings belong to the parts: move each into the part that it is for")
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
    """A built-in environment, one provided by an installed package, or `package.module:KIND`."""
    settings: FreeSettings = Field(default_factory=dict)
    """Settings of the environment; its page lists the keys."""
    place: Literal["process", "thread"] | None = None
    """Run it in a process or in a thread; unset leaves the choice to the environment."""
    url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")] | None = None
    """Address of a server that runs the environment with these settings
    (`python -m agentfly_lib.envs.host --http PORT --kind NAME`)."""


class EnvironmentConfig(EnvironmentChoice):
    """The environment that the agent acts in. Its actions become the agent's tools; its prompt and its reward apply
    unless the recipe sets others."""

    warm: Annotated[int, Field(ge=0)] = 2
    """Number of environments kept ready between trajectories."""
    cap: PositiveInt = 32
    """Maximum number of environments at the same time. A trajectory that needs another one waits."""

    @model_validator(mode="after")
    def _fits(self) -> EnvironmentConfig:
        if self.warm > self.cap:
            raise ValueError(f"warm={self.warm} is more than cap={self.cap}; lower warm or raise cap")
        return self


_SECRET_HEADER = re.compile(r"authorization$|^cookie$|(^|[-_])(api[-_]?key|token|secret|password)$", re.IGNORECASE)


class McpServerConfig(Config):
    """An MCP server, whose tools become the agent's: a program (`command`) or an address (`url`)."""

    command: Annotated[str, Field(min_length=1)] | None = None
    """A program that is started for each trajectory and used through its standard input and output."""
    args: tuple[str, ...] = ()
    """Arguments of `command`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program, besides a few harmless ones; it inherits no others. They are written into
    the run directory, so put no secrets here."""
    pass_env: tuple[str, ...] = ()
    """Names of environment variables to pass on from this process, for secrets."""
    folder: Path | None = None
    """Working directory of the program."""
    url: Annotated[str, Field(pattern=r"^https?://.")] | None = None
    """Address of a server that is reached by streamable HTTP. Each trajectory has its own session."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers of every request. They are written into the run directory, so put no secrets here."""
    headers_env: dict[str, str] = Field(default_factory=dict)
    """Further headers, for secrets: each header's name, and the environment variable that holds its value."""
    token_env: str | None = None
    """Environment variable that holds a bearer token for the server."""
    tools: tuple[str, ...] | None = None
    """The server's tools to use, by name; unset means all."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = ""
    """Prefix for the names of the tools, to tell apart servers that use the same names."""
    timeout_seconds: PositiveFloat | None = None
    """Time limit for one call; unset means `agent.tool_timeout_seconds`."""
    start_seconds: PositiveFloat = 30.0
    """Time limit for connecting and listing the tools."""

    @model_validator(mode="after")
    def _one_kind(self) -> McpServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("give command, for a program, or url, for a server that runs already, and not both")
        if secret := next((name for name in self.headers if _SECRET_HEADER.search(name)), None):
            raise SecretError(
                f"headers.{secret} is a secret, and a recipe is stored and shown: name the variable that holds it, "
                "with token_env or headers_env"
            )
        others = ("headers", "headers_env", "token_env") if self.url is None else ("args", "env", "pass_env", "folder")
        for key in others:
            if getattr(self, key):
                raise ValueError(f"{key} is for a server with {'url' if self.url is None else 'command'}")
        return self


class NoCompactionConfig(Config):
    """No compaction: a full context ends the trajectory."""

    type: Literal["none"] = "none"


class SlidingWindowConfig(Config):
    """Starts a new segment without the oldest turns. The first prompt and the newest turns stay."""

    type: Literal["sliding_window"] = "sliding_window"
    start_at: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Compact when this share of the context is used."""
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the context that the new segment's prompt may take."""

    @model_validator(mode="after")
    def _shrinks(self) -> SlidingWindowConfig:
        if self.keep >= self.start_at:
            raise ValueError(f"keep={self.keep} must be less than start_at={self.start_at}, or no room is gained")
        return self


class SummaryConfig(Config):
    """The policy writes a summary, which is trained on, and continues from it in a new segment.

    If the context has no room for a summary, the oldest turns are left out instead, as in `sliding_window`.
    """

    type: Literal["summary"] = "summary"
    start_at: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Compact when this share of the context is used. The rest must hold the instruction and the summary."""
    max_tokens: PositiveInt = 512
    """Maximum length of the summary, in tokens."""
    instruction: Annotated[str, Field(min_length=1)] = SUMMARY_INSTRUCTION
    """The instruction that asks the policy for a summary."""


CompactionConfig = Annotated[NoCompactionConfig | SlidingWindowConfig | SummaryConfig, Field(discriminator="type")]


class AgentSettings(Config):
    """Settings that every type of agent has."""

    template: str | None = None
    """Name of a template family; unset means the model's own chat template."""
    thinking: bool | None = None
    """Whether the model reasons before it answers, if its template supports both; unset keeps the template's
    default."""
    system_prompt: str | None = None
    """System message, unless the problem's messages begin with one. If unset, the environment's prompt is used, if it
    has one."""
    environment: EnvironmentConfig | None = None
    """The environment that the agent acts in, if any."""
    tools: tuple[str, ...] = ("calculator",)
    """Built-in tools, or `package.module:name`. The tools of an environment or of MCP servers need not be listed; with
    either, the default is an empty list."""
    mcp_servers: tuple[McpServerConfig, ...] = ()
    """MCP servers whose tools the agent has as well."""
    tool_settings: dict[str, FreeSettings] = Field(default_factory=dict)
    """Settings of tools, by tool name; the tool's documentation lists the keys."""
    reward: RewardConfig = RewardConfig()
    """How trajectories are scored."""
    max_turns: PositiveInt = 3
    """Maximum number of turns in a trajectory."""
    tool_timeout_seconds: PositiveFloat = 30.0
    """Time limit for a tool call, unless the tool sets its own."""
    max_tool_chars: PositiveInt = 4096
    """Tool results longer than this are truncated and marked, unless the tool sets its own limit."""
    max_calls_per_turn: Annotated[int, Field(ge=1, le=128)] = 32
    """Maximum number of tool calls in one turn. Further calls are refused with an error message to the policy."""
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
    """Parser for tool calls in replies (`agentfly_lib.chat.parser_names`); unset: the format that the template
    teaches."""


class ImageAgentConfig(AgentSettings):
    """Like `hf`, for vision models: images of the problem and of tool results are put into the prompt."""

    type: Literal["image"] = "image"
    parser: str | None = None
    """Parser for tool calls in replies, as for `hf`."""


class ReActAgentConfig(AgentSettings):
    """Acts in plain text: Thought, Action, Action Input, and finally Final Answer."""

    type: Literal["react"] = "react"


class CodeAgentConfig(AgentSettings):
    """Writes code blocks, which an interpreter runs."""

    type: Literal["code"] = "code"
    tools: tuple[str, ...] = ("code_interpreter",)
    """The tool that runs the code blocks: a built-in one, or `package.module:name`."""


class SearchAgentConfig(AgentSettings):
    """Searches with `<search>`, receives `<information>`, and ends with `<answer>`."""

    type: Literal["search"] = "search"
    tools: tuple[str, ...] = ("web_search",)
    """The tool that answers the searches: a built-in one, or `package.module:name`."""


class GUIAgentConfig(AgentSettings):
    """Clicks, types and scrolls on a screen."""

    type: Literal["gui"] = "gui"
    tools: tuple[str, ...] = ()
    """One tool per action, with the same name as the action."""
    screen_width: PositiveInt = 1280
    """Width of the screen, in pixels."""
    screen_height: PositiveInt = 720
    """Height of the screen, in pixels."""


class CustomAgentConfig(AgentSettings):
    """Your own agent class."""

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """`package.module:ClassName` of a subclass of `agentfly_lib.agents.Agent`."""
    options: FreeSettings = Field(default_factory=dict)
    """Arguments of this class, besides those that every agent takes."""


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
