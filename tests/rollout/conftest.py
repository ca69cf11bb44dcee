"""An agent small enough to follow by hand: every character is a token, its id the code point; 0 ends a turn.

prompt      "Q <question>|A "
reply       whatever the script says, then 0
bridge      "\\nT <tool result>|A "      (0 first if the turn was cut)
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from agentfly_lib.chat import Bridge, HermesParser, ParsedReply, Prompt, StreamDecoder, StreamParser
from agentfly_lib.configs import CompactionConfig, NoCompactionConfig, RolloutConfig
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.rollout import ChainLimits, RolloutSeeds, collect, run_chain, tool_messages
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import RolloutStore
from agentfly_lib.tools import Tool, ToolContext, ToolResult, tool
from agentfly_lib.types import Message, Problem

STOP = 0


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


@dataclass
class CharacterChat:
    """A chat format without a tokenizer; `rewrites` makes it render a fresh prompt between turns."""

    rewrites: bool = False
    stop_token_ids: tuple[int, ...] = (STOP,)
    banned_token_ids: tuple[int, ...] = ()
    vision: None = None

    def encode(self, text: str) -> list[int]:
        return encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token != STOP)

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(self.decode, chr)

    def prompt_ids(self, messages: Sequence[Message], tools: object = None) -> list[int]:
        return encode("".join(f"{message['role'][0].upper()} {message['content']}|" for message in messages) + "A ")

    def prompt(self, messages: Sequence[Message], tools: object = None, *, pictures: object = None) -> Prompt:
        return Prompt(ids=self.prompt_ids(messages, tools))

    def bridge(self, history, reply, sampled_ids, additions, tools=None, *, pictures=None, before=None) -> Bridge:
        if self.rewrites:
            rewritten = [*history, {"role": "assistant", "content": "..."}, *additions]
            return Bridge(ids=self.prompt_ids(rewritten), rewritten=True)
        end = [] if list(sampled_ids[-1:]) == [STOP] else [STOP]
        return Bridge(ids=[*end, *encode("\n" + "".join(f"T {m['content']}|" for m in additions) + "A ")])


@tool
def double(number: int) -> str:
    """Twice a number."""
    return str(2 * number)


@tool(finishes=True)
def submit(answer: str) -> ToolResult:
    """Hand in an answer."""
    return ToolResult(observation="handed in", env_reward=0.5)


@tool
def count(context: ToolContext) -> str:
    """How often it was called in this trajectory."""
    context.state["calls"] = context.state.get("calls", 0) + 1
    return str(context.state["calls"])


@dataclass
class CharacterAgent:
    chat: CharacterChat = field(default_factory=CharacterChat)
    tools: Mapping[str, Tool] = field(default_factory=lambda: {t.name: t for t in (double, submit, count)})
    max_turns: int = 3
    tool_timeout_seconds: float = 5.0
    max_tool_chars: int = 200
    max_calls_per_turn: int = 8
    compaction: CompactionConfig = field(default_factory=NoCompactionConfig)

    @property
    def schemas(self):
        return [tool.schema for tool in self.tools.values()]

    def build_messages(self, problem: Problem) -> list[Message]:
        return list(problem.messages)

    def parse(self, text: str) -> ParsedReply:
        return HermesParser().parse(text)

    def stream_parser(self) -> StreamParser:
        return StreamParser(HermesParser())

    def observe(self, calls, results) -> list[Message]:
        return tool_messages(calls, results)


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def problem(question: str = "2+2?", name: str = "p") -> Problem:
    return Problem(id=name, messages=({"role": "question", "content": question},))


def place(request: GenerationRequest) -> tuple[str, int, int]:
    """Group, chain and turn of a request."""
    group, chain, turn = request.request_id.rsplit("/", 2)
    return group, int(chain), int(turn)


def scripted(*replies, **options) -> ScriptedGenerate:
    """Reply k of every chain is `replies[k]`."""
    return ScriptedGenerate(lambda request: replies[place(request)[2]], format=CharacterChat(), **options)


def by_place(script: Callable, **options) -> ScriptedGenerate:
    """The reply is `script(group, chain, turn)`."""
    return ScriptedGenerate(lambda request: script(*place(request)), format=CharacterChat(), **options)


LIMITS = ChainLimits(max_turns=3, max_turn_tokens=200, max_sampled_tokens=400, context_length=1000, timeout_seconds=30)


async def run(generate, agent=None, *, limits: ChainLimits | None = None, **options):
    """One chain with everything else filled in."""
    return await run_chain(
        agent or CharacterAgent(),
        generate,
        options.pop("problem", problem()),
        group_id="g",
        chain=0,
        limits=limits or LIMITS,
        sampling=RolloutConfig().sampling,
        seed_of_turn=options.pop("seed_of_turn", lambda turn: turn),
        **options,
    )


def config(**changes) -> RolloutConfig:
    return RolloutConfig(**({"chains": 2, "flush_seconds": 0.001, "max_turn_tokens": 200} | changes))


def problems(count: int) -> list[tuple[str, Problem]]:
    return [(f"0-{index}", problem(f"question {index}", f"p{index}")) for index in range(count)]


def open_store(path, asked: Sequence[tuple[str, Problem]], chains: int = 2) -> RolloutStore:
    return RolloutStore.open(
        StepDirectory(path), step=0, policy_version=0, group_ids=[group for group, _ in asked], chains=chains
    )


async def gather(generate, asked, store, *, agent=None, **options):
    """A collection with everything else filled in."""
    return await collect(
        agent or CharacterAgent(),
        generate,
        asked,
        store,
        config=options.pop("config", config()),
        seeds=options.pop("seeds", RolloutSeeds(run_seed=0, step=0)),
        backoff_seconds=0.0,
        **options,
    )


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Let the event loop, and the threads beside it, go on until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture(scope="session")
def world() -> SimpleNamespace:
    """Everything above, under one name."""
    return SimpleNamespace(**globals())
