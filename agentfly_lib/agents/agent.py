"""An agent: a model, its prompt, tools, reward, format and limits. Useful alone, and the same value in a training run.

    agent = HFAgent("Qwen/Qwen2.5-3B-Instruct", tools=[calculator], reward_fn="math_equal")
    result = await agent.run({"question": "What is 1 + 1?", "answer": "2"}, num_chains=4)
    result.trajectories, result.rewards

A kind of agent is a subclass that says two things: how the first prompt is built (`build_messages`) and how a reply is
taken apart (`parse`). Nothing else of an agent ever changes after it is made; any number of chains share one. Its
engine starts at the first run, and is the only thing to close.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agentfly_lib.agents.blocking import run_blocking
from agentfly_lib.agents.generation import GenerationConfig
from agentfly_lib.agents.mcp import tools_of_servers
from agentfly_lib.agents.options import read_options
from agentfly_lib.agents.result import RunResult
from agentfly_lib.configs.agent import AgentSettings, CompactionConfig, CustomAgentConfig, NoCompactionConfig
from agentfly_lib.envs.spec import EnvironmentSpec, configured_environment
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference import Generate
from agentfly_lib.named import near_or_all
from agentfly_lib.rewards.registry import build_reward, get_reward
from agentfly_lib.rewards.reward import Reward, reward
from agentfly_lib.rollout.agent import tool_messages
from agentfly_lib.tools import Tool, ToolResult, get_tool
from agentfly_lib.tools.environment import environment_tools
from agentfly_lib.types import Message, Problem, Trajectory

if TYPE_CHECKING:  # what runs an agent is imported when one runs, and not to check a recipe
    from agentfly_lib.agents.host import EngineHost
    from agentfly_lib.agents.running import AgentRun
    from agentfly_lib.agents.streaming import AgentEvent
    from agentfly_lib.chat import ChatFormat, MalformedCall, ParsedReply, StreamParser, ToolCall

__all__ = ["Agent", "as_reward", "as_tools", "environment_of", "tools_of", "unscored"]


_DEFAULT = AgentSettings()


@reward(inline=True)
def unscored() -> None:
    """Stands where no reward was given."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Agent(ABC):
    """What a chain needs of an agent (`rollout.ChainAgent`), the reward that scores it, and an engine to try it."""

    default_tools: ClassVar[tuple[str, ...]] = ()
    """Names of the tools of an agent that is given none."""
    sees: ClassVar[bool] = False
    """Whether images of tool results are shown to the model; otherwise a mark in the text says that there were some."""

    model_name_or_path: str | Path
    chat: ChatFormat
    tools: Mapping[str, Tool]
    """By name, in the order in which the prompt lists them."""
    reward: Reward
    system_prompt: str | None
    max_turns: int
    """Turns that the policy may take."""
    tool_timeout_seconds: float
    """Limit of a call whose tool sets none of its own."""
    max_tool_chars: int
    """Longest observation of a tool that sets no limit of its own."""
    max_calls_per_turn: int
    """Tool calls of one turn that are run; those beyond are refused."""
    compaction: CompactionConfig
    """What happens when the context is nearly full."""
    reward_timeout_seconds: float
    chain_timeout_seconds: float
    max_concurrency: int
    """Chains at the same time, and rewards, where a run does not say."""
    _host: EngineHost

    def __init__(
        self,
        model_name_or_path: str | Path,
        tools: Iterable[Tool | str] | None = None,
        *,
        reward_fn: Reward | str | None = None,
        template: str | None = None,
        thinking: bool | None = None,
        system_prompt: str | None = None,
        backend_config: Mapping[str, Any] | None = None,
        backend: Generate | str | None = None,
        max_turns: int = _DEFAULT.max_turns,
        tool_timeout_seconds: float = _DEFAULT.tool_timeout_seconds,
        max_tool_chars: int = _DEFAULT.max_tool_chars,
        max_calls_per_turn: int = _DEFAULT.max_calls_per_turn,
        compaction: CompactionConfig | None = None,
        reward_timeout_seconds: float = 30.0,
        chain_timeout_seconds: float = 600.0,
        max_concurrency: int = 128,
    ) -> None:
        """Loads the tokenizer; the engine starts at the first run.

        tools, reward_fn: objects made by `@tool` and `@reward`, or their names.
        template: see `chat.templates`; unset means the model's own.
        thinking: whether the model reasons first, where its template can switch that.
        backend_config: `{"backend": "async_vllm", ...}` with the backend's settings and `context_length`.
        backend: an engine of your own (anything that satisfies `inference.Generate`), or a backend's name.
        compaction: `SlidingWindowConfig()` or `SummaryConfig()`; unset ends a trajectory whose context is full.

        Raises `ConfigError` for a name or setting that cannot be, `ModelError` for a model that cannot be used.
        """
        checked_tools = as_tools(self.default_tools if tools is None else tools)
        checked_reward = unscored if reward_fn is None else as_reward(reward_fn)
        _check_limits(
            max_turns=max_turns,
            tool_timeout_seconds=tool_timeout_seconds,
            max_tool_chars=max_tool_chars,
            max_calls_per_turn=max_calls_per_turn,
            reward_timeout_seconds=reward_timeout_seconds,
            chain_timeout_seconds=chain_timeout_seconds,
            max_concurrency=max_concurrency,
        )
        from agentfly_lib.agents.host import EngineHost
        from agentfly_lib.chat import ChatFormat

        chat = ChatFormat.from_pretrained(model_name_or_path, template=template, thinking=thinking)
        host = EngineHost.open(backend, backend_config or {}, model=model_name_or_path, chat=chat)
        self._freeze(
            model_name_or_path=model_name_or_path,
            chat=chat,
            tools=checked_tools,
            reward=checked_reward,
            system_prompt=system_prompt,
            max_turns=max_turns,
            tool_timeout_seconds=tool_timeout_seconds,
            max_tool_chars=max_tool_chars,
            max_calls_per_turn=max_calls_per_turn,
            compaction=compaction or NoCompactionConfig(),
            reward_timeout_seconds=reward_timeout_seconds,
            chain_timeout_seconds=chain_timeout_seconds,
            max_concurrency=max_concurrency,
            _host=host,
        )
        self.check()

    @classmethod
    def from_config(cls, config: AgentSettings, model_name_or_path: str | Path, **options: Any) -> Self:
        """The agent of a recipe's `[agent]` table; `options` are arguments of the class that the table has not."""
        environment = environment_of(config)
        settings: dict[str, Any] = {
            "template": config.template,
            "thinking": config.thinking,
            "system_prompt": config.system_prompt or (environment.kind.prompt if environment else None),
            "max_turns": config.max_turns,
            "tool_timeout_seconds": config.tool_timeout_seconds,
            "max_tool_chars": config.max_tool_chars,
            "max_calls_per_turn": config.max_calls_per_turn,
            "compaction": config.compaction,
            "reward_timeout_seconds": config.reward.timeout_seconds,
        }
        if "tools" not in options:
            settings["tools"] = tuple(tools_of(config).values())
        if "reward_fn" not in options:
            settings["reward_fn"] = build_reward(config.reward)
        if isinstance(config, CustomAgentConfig):
            settings |= read_options(cls, config.options)
        return cls(model_name_or_path, **(settings | options))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.model_name_or_path)!r}, tools=[{', '.join(self.tools)}])"

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Tool schemas that the chat template writes into the prompt."""
        return [tool.schema for tool in self.tools.values()]

    def build_messages(self, problem: Problem) -> list[Message]:
        """The first prompt's conversation. A problem that begins with a system message keeps its own."""
        messages = list(problem.messages)
        if self.system_prompt is None or (messages and messages[0].get("role") == "system"):
            return messages
        return [{"role": "system", "content": self.system_prompt}, *messages]

    def check(self) -> None:  # noqa: B027  most kinds have nothing to check
        """Raises `ConfigError` if this kind of agent cannot work with the tools that it was given."""

    @abstractmethod
    def parse(self, text: str) -> ParsedReply:
        """Takes a reply apart. A reply without calls is the final one."""

    def stream_parser(self) -> StreamParser | None:
        """Takes the same apart while it is sampled, for `stream`; None shows what is sampled as it is."""
        return None

    def observe(self, calls: Sequence[ToolCall | MalformedCall], results: Sequence[ToolResult]) -> list[Message]:
        """What comes back to the policy after its calls: a message of the role `tool` for each."""
        return tool_messages(calls, results, sees=self.sees)

    @cached_property
    def fingerprint(self) -> str:
        """Hash over all that decides what a problem's prompt is: format, kind of agent, system prompt, tools."""
        tools = [tool.schema for tool in self.tools.values()]
        parts = [self.chat.fingerprint, *_sources(type(self)), self.system_prompt, tools]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Of the last run; empty before the first."""
        return self._host.last.trajectories if self._host.last else []

    @property
    def rewards(self) -> list[float | None]:
        """Of the last run, one per trajectory; None where it was not or could not be scored."""
        return self._host.last.rewards if self._host.last else []

    async def run(
        self,
        messages: Any,
        max_turns: int | None = None,
        num_chains: int = 1,
        generation_config: Mapping[str, Any] | None = None,
        *,
        max_concurrent_chains: int | None = None,
    ) -> RunResult:
        """Lets the agent work on each conversation `num_chains` times, and scores what came of it.

        messages: one conversation, a question, a row with `messages` or `question` and columns for tools and rewards,
            or a list of these.
        max_turns, max_concurrent_chains: for this run, in place of the agent's own.
        generation_config: `max_tokens` (of a turn), `seed`, and what `SamplingConfig` has.

        A chain that breaks is a trajectory with `failure` set. Raises `DataError` or `ConfigError` before anything is
        generated, and `EngineError` if the engine is gone.
        """
        run = self._prepare(messages, max_turns, num_chains, generation_config, max_concurrent_chains)
        self._host.last = await run.start()
        return self._host.last

    def run_sync(self, messages: Any, **options: Any) -> RunResult:
        """`run`, for scripts and for notebooks, whose event loop is running already."""
        return run_blocking(lambda: self.run(messages, **options))

    async def stream(
        self,
        messages: Any,
        max_turns: int | None = None,
        num_chains: int = 1,
        generation_config: Mapping[str, Any] | None = None,
        *,
        max_concurrent_chains: int | None = None,
    ) -> AsyncGenerator[AgentEvent, None]:
        """`run`, told while it happens: see `rollout.events`; the last event, `RunEnded`, holds the scored result.

        Leaving the loop early ends the run once the generator is closed (`contextlib.aclosing` does it at once). If
        the run cannot go on, its events are closed, and then the error is raised.
        """
        from agentfly_lib.agents.streaming import stream_events

        run = self._prepare(messages, max_turns, num_chains, generation_config, max_concurrent_chains)

        async def start(tell: Any) -> RunResult:
            self._host.last = await run.start(on_event=tell)
            return self._host.last

        events = stream_events(start)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def close(self) -> None:
        """Ends the engine, if this agent started it."""
        await self._host.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _prepare(
        self,
        messages: Any,
        max_turns: int | None,
        num_chains: int,
        generation_config: Mapping[str, Any] | None,
        max_concurrent_chains: int | None,
    ) -> AgentRun:
        from agentfly_lib.agents.inputs import to_problems
        from agentfly_lib.agents.running import AgentRun

        max_turns = self.max_turns if max_turns is None else max_turns
        concurrency = self.max_concurrency if max_concurrent_chains is None else max_concurrent_chains
        _check_limits(max_turns=max_turns, num_chains=num_chains, max_concurrent_chains=concurrency)
        problems = to_problems(messages)
        for problem in problems:
            self.reward.check_columns(problem.columns)
        return AgentRun(
            agent=self,
            reward=None if self.reward is unscored else self.reward,
            engine=self._host.engine,
            problems=problems,
            num_chains=num_chains,
            generation=GenerationConfig.read(generation_config),
            max_turns=max_turns,
            context_length=self._host.context_length,
            chain_timeout_seconds=self.chain_timeout_seconds,
            reward_timeout_seconds=self.reward_timeout_seconds,
            max_concurrency=concurrency,
        )

    def _freeze(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def as_tools(
    tools: Iterable[Tool | str], settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, Tool]:
    """Tools by name, names resolved, made with the `settings` of their name (a recipe's `agent.tool_settings`).

    Raises `ConfigError` for anything that cannot be called, a name used twice, or settings that do not fit, and another
    `UserError` for a tool that cannot work on this machine.
    """
    if isinstance(tools, Tool | str):
        name = tools if isinstance(tools, str) else tools.name
        raise ConfigError(f"tools is {name!r} alone, not a list; put brackets around it")
    found: dict[str, Tool] = {}
    for item in tools:
        tool = get_tool(item) if isinstance(item, str) else item
        if not isinstance(tool, Tool):
            raise _unusable(item, "tool", 'tools=["{}"]')
        if tool.needs_instance:
            raise ConfigError(f"tool {tool.name!r} is a method; take it from an instance")
        if tool.name in found:
            raise ConfigError(f"two tools are called {tool.name!r}; give one of them another name")
        if tool.name in settings:
            tool = tool.with_settings(settings[tool.name])
        tool.check()
        _ = tool.schema  # a signature that cannot be described fails here, not in a rollout
        found[tool.name] = tool
    for name in settings.keys() - found.keys():
        hint = near_or_all(name, found, all_of="the agent's tools")
        raise ConfigError(f"agent.tool_settings.{name}: the agent has no tool of that name; {hint}")
    return found


def environment_of(config: AgentSettings) -> EnvironmentSpec | None:
    """The environment that a recipe's agent acts in, if it does. Raises `ConfigError` for its name or its settings."""
    if config.environment is None:
        return None
    return configured_environment(config.environment, where="agent.environment")


def tools_of(config: AgentSettings) -> dict[str, Tool]:
    """The tools of a recipe's agent: the actions of its environment, those that it names, and those of its MCP servers,
    which are started or reached to ask for them. Raises as `as_tools`.
    """
    environment = environment_of(config)
    actions = environment_tools(environment) if environment else []
    return as_tools([*actions, *config.tools, *tools_of_servers(config.mcp_servers)], config.tool_settings)


def as_reward(reward: Reward | str) -> Reward:
    """A reward, or the one of that name. Raises `ConfigError`."""
    found = get_reward(reward) if isinstance(reward, str) else reward
    if not isinstance(found, Reward):
        raise _unusable(reward, "reward", 'reward_fn="{}"')
    return found


def _unusable(item: Any, noun: str, by_name: str) -> ConfigError:
    """The error for something that is none. Ours stand in a module of the same name, which is easily taken for it."""
    label = getattr(item, "__name__", repr(item))
    if isinstance(item, ModuleType):
        return ConfigError(f"{label} is a module, not a {noun}; write {by_name.format(label.rpartition('.')[2])}")
    return ConfigError(f"{label} is a {type(item).__name__}, not a {noun}; put @{noun} on it, or give a {noun}'s name")


def _check_limits(**limits: float) -> None:
    for name, value in limits.items():
        if name.endswith("_seconds"):
            if not value > 0:
                raise ConfigError(f"{name}={value} must be more than 0")
        elif value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")


def _sources(kind: type[Agent]) -> list[str]:
    """What makes a kind of agent another one: the names and, where there is a file, the texts of its classes."""
    import inspect

    sources = []
    for base in kind.__mro__[: kind.__mro__.index(Agent)]:
        try:
            sources.append(inspect.getsource(base))
        except (OSError, TypeError):  # defined in a notebook or a shell
            sources.append(f"{base.__module__}:{base.__qualname__}")
    return sources
