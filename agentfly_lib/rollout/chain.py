"""One chain: one attempt of an agent at one problem, as one coroutine.

    prompt -> generate -> parse -> run the turn's calls concurrently -> append what came back -> generate -> ...

Token ids go in and out of the engine; what was sampled is kept as sampled, and between two turns stands the bridge
that the chat format renders. If the template rewrites history instead, or the agent makes room in a context that is
nearly full, a new segment begins. `run_chain` always returns a trajectory: whatever breaks one chain is recorded in it
and touches no other. Only two things pass through: cancellation, and `EngineError`, which says that no chain at all can
go on.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from agentfly_lib.bounded import call_in_thread
from agentfly_lib.chat import Bridge, MalformedCall, PictureBook, Prompt, ToolCall
from agentfly_lib.chat.pictures import shown
from agentfly_lib.configs.agent import SummaryConfig
from agentfly_lib.configs.inference import SamplingConfig
from agentfly_lib.errors import EngineError, InfrastructureError, PolicyError, RolloutError
from agentfly_lib.inference.generate import Delta, Generate, GenerateStream, Generation, GenerationRequest
from agentfly_lib.resources import ResourceEngine, ResourceScope
from agentfly_lib.resources.engine import WAIT_SECONDS
from agentfly_lib.rollout.agent import ChainAgent
from agentfly_lib.rollout.clock import ActivityClock
from agentfly_lib.rollout.compaction import is_due, sliding_window, window_tokens, with_request, with_summary
from agentfly_lib.rollout.events import ChainEvent, ChainEvents
from agentfly_lib.rollout.limits import ChainLimits
from agentfly_lib.rollout.prompts import FirstPrompts
from agentfly_lib.rollout.segment import SegmentBuilder
from agentfly_lib.rollout.stages import Stage
from agentfly_lib.tools import ToolContext, execute_calls
from agentfly_lib.types import Failure, FailureKind, FinishReason, Message, Problem, StopReason, Trajectory
from agentfly_lib.visible import visible

__all__ = ["run_chain"]

logger = logging.getLogger(__name__)

_WAIT_SHARE = 0.9
"""Of a chain's time, what it may wait for a resource at most: then the error says for which, and it is tried again."""
_MOST_TURNS = 4
"""Turns that a rank tells apart; later ones go by arrival, so that a chain of many turns does not wait for ever."""


async def run_chain(
    agent: ChainAgent,
    generate: Generate,
    problem: Problem,
    *,
    group_id: str,
    chain: int,
    limits: ChainLimits,
    sampling: SamplingConfig,
    greedy: bool = False,
    seed_of_turn: Callable[[int], int],
    rank: int = 0,
    attempt: int = 0,
    prompts: FirstPrompts | None = None,
    clock: ActivityClock | None = None,
    resources: ResourceEngine | None = None,
    on_event: Callable[[ChainEvent], None] | None = None,
) -> Trajectory:
    """Let `agent` work on `problem` once, and return what happened, failures included.

    Args:
        group_id, chain: name the trajectory, `<group_id>/<chain>`.
        seed_of_turn: seed of the turn's sampling, by the turn's number from 0.
        rank: of chains that wait for the engine, those of the smallest rank go first, and of these the earliest turns:
            who has most ahead of it must not start late.
        attempt: how many tries of this chain failed before; only recorded.
        prompts: of this agent, if many chains share them.
        clock: told when a generation or tools are in flight.
        resources: lends what tools need; without one the chain has an engine of its own, and shares no pool.
        on_event: told what happens, see `rollout.events`; must not raise.

    Raises:
        EngineError: the engine is gone for good; the collection cannot go on.
        asyncio.CancelledError: the requests and tools in flight were cancelled too.
    """
    trajectory_id = f"{group_id}/{chain}"
    events = ChainEvents(on_event, trajectory_id, agent.stream_parser)
    run = _Chain(
        agent=agent,
        generate=generate,
        problem=problem,
        trajectory_id=trajectory_id,
        group_id=group_id,
        limits=limits,
        sampling=sampling,
        greedy=greedy,
        seed_of_turn=seed_of_turn,
        rank=rank,
        prompts=prompts or FirstPrompts(agent),
        clock=clock or ActivityClock(),
        resources=resources,
        events=events,
    )
    with events.trajectory(problem.id):
        trajectory = await _run_to_the_end(run, problem, limits, group_id=group_id, chain=chain, attempt=attempt)
        events.ended(trajectory)
    return trajectory


async def _run_to_the_end(
    run: _Chain, problem: Problem, limits: ChainLimits, *, group_id: str, chain: int, attempt: int
) -> Trajectory:
    started = perf_counter()
    stop, failure = StopReason.FAILED, None
    deadline = asyncio.timeout(limits.timeout_seconds)
    try:
        async with deadline:
            stop = await run.play()
        run.check_trainable(stop)
    except EngineError as error:
        run.events.error(_one_line(error))
        raise
    except RolloutError as error:
        failure = Failure(kind=error.kind, message=_one_line(error), where=error.where)
    except TimeoutError as error:
        failure = run.out_of_time(error, expired=deadline.expired())
    except Exception as error:  # noqa: BLE001  see below
        # The boundary of a chain: whatever a tool, a template or a bug of ours raises must end this trajectory only.
        # It is not the policy's doing, so it counts as infrastructure, and as an outage if it hits chain after chain.
        trace = visible(traceback.format_exc())
        logger.error("trajectory %s broke at %s\n%s", run.id, run.stage, trace)  # noqa: TRY400  not as it is raw
        failure = Failure(
            kind=FailureKind.INFRASTRUCTURE, message=f"{type(error).__name__}: {_one_line(error)}", where=run.stage
        )
    finally:
        await run.close()
    if failure is not None:
        run.events.error(failure.message, failure)
    return Trajectory(
        id=run.id,
        problem_id=problem.id,
        group_id=group_id,
        chain=chain,
        segments=tuple(builder.build() for builder in run.segments),
        stop=StopReason.FAILED if failure else stop,
        attempt=attempt,
        env_reward=run.env_reward,
        metrics=run.metrics(perf_counter() - started),
        failure=failure,
        pictures=run.pictures.files,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A turn of the policy, and what is to answer it."""

    reply: str
    sampled_ids: Sequence[int]
    results: list[Message]
    seconds: float
    """Of its tools."""
    reward: float | None
    """That the environment gave for it."""

    @property
    def said(self) -> Message:
        return {"role": "assistant", "content": self.reply}


@dataclass(frozen=True, slots=True)
class _Ended:
    """A call finished the chain."""

    text: str | None
    """The answer that it gave; None if it gave none."""


class _Chain:
    """The state of one chain, and its steps."""

    def __init__(
        self,
        *,
        agent: ChainAgent,
        generate: Generate,
        problem: Problem,
        trajectory_id: str,
        group_id: str,
        limits: ChainLimits,
        sampling: SamplingConfig,
        greedy: bool,
        seed_of_turn: Callable[[int], int],
        rank: int,
        prompts: FirstPrompts,
        clock: ActivityClock,
        resources: ResourceEngine | None,
        events: ChainEvents,
    ) -> None:
        self.id = trajectory_id
        self.stage = Stage.PROMPT
        self.segments: list[SegmentBuilder] = []
        self.env_reward: float | None = None
        self.pictures = PictureBook()
        self.events = events
        self._agent = agent
        self._generate = generate
        self._limits = limits
        self._sampling = sampling
        self._greedy = greedy
        self._seed_of_turn = seed_of_turn
        self._rank = rank
        self._clock = clock
        self._prompts = prompts
        self._generations = 0
        self._first: tuple[Message, ...] = ()
        """The first prompt's conversation."""
        self._head: tuple[Message, ...] = ()
        """The same, with the newest summary in it if there is one."""
        self._history: list[Message] = []
        """Everything that the next prompt renders."""
        self._text: str | None = None
        """The same as text, where it is known."""
        self._problem = problem
        self._context = ToolContext(
            trajectory_id=trajectory_id,
            group_id=group_id,
            problem=problem,
            resources=ResourceScope(
                resources, trajectory_id, wait_seconds=min(WAIT_SECONDS, _WAIT_SHARE * limits.timeout_seconds)
            ),
        )
        self._counts = dict.fromkeys(_METRICS, 0.0)

    async def play(self) -> StopReason:
        """From the first prompt to the end; says why it ended."""
        first = self._prompts.render(self._problem)
        self._first = self._head = first.messages
        self._history = list(first.messages)
        self.pictures = PictureBook(first.pictures)
        self._open(first.prompt)
        turn = 0
        while True:
            room = self._limits.room(prompt_tokens=len(self.segments[-1]), sampled_tokens=self._num_sampled)
            if isinstance(room, StopReason):
                return room
            turn += 1
            with self.events.turn(len(self.segments[-1])):
                outcome = await self._turn(room, last=turn == self._limits.max_turns)
            if isinstance(outcome, StopReason):
                return outcome
            if not await self._go_on(outcome):
                return StopReason.CONTEXT_FULL

    async def close(self) -> None:
        """Closes what the tools of this chain have opened; bounded in time, and goes on by itself if cancelled."""
        await self._context.resources.aclose()

    def check_trainable(self, stop: StopReason) -> None:
        """Raises `PolicyError` if the policy sampled no token at all."""
        if not self._num_sampled:
            raise PolicyError(
                f"trajectory {self.id} of problem {self._problem.id} has no sampled token, nothing to train on: it "
                f"stopped as {stop} after a prompt of {len(self.segments[-1])} tokens, with a context of "
                f"{self._limits.context_length}",
                where=self.stage,
            )

    def out_of_time(self, error: TimeoutError, *, expired: bool) -> Failure:
        """The failure that a `TimeoutError` means: the chain's own limit (`expired`), or one raised inside it."""
        message = _one_line(error) or "timed out"
        if expired:
            message = f"trajectory {self.id} was not done after its limit of {self._limits.timeout_seconds:g} s"
            if awaited := self._context.resources.awaited:
                message += f": it was waiting for {', '.join(awaited)}"
                return Failure(kind=FailureKind.INFRASTRUCTURE, message=message, where=Stage.RESOURCES)
        # A slow tool is not an outage of ours, and would be as slow again.
        kind = FailureKind.TOOL if self.stage is Stage.TOOLS else FailureKind.INFRASTRUCTURE
        return Failure(kind=kind, message=message, where=self.stage)

    def metrics(self, seconds: float) -> dict[str, float]:
        """Counts and seconds of this chain; `other_seconds` is our own work, neither generation nor tools."""
        counts = self._counts
        return counts | {
            "seconds": seconds,
            "other_seconds": max(0.0, seconds - counts["generate_seconds"] - counts["tool_seconds"]),
            "resource_wait_seconds": self._context.resources.waited,
            "sampled_tokens": float(self._num_sampled),
            "missing_logprobs": float(sum(builder.missing_logprobs for builder in self.segments)),
            "segments": float(len(self.segments)),
        }

    @property
    def _num_sampled(self) -> int:
        return sum(builder.num_sampled for builder in self.segments)

    def _open(self, prompt: Prompt | Bridge) -> None:
        builder = SegmentBuilder()
        builder.prompt(prompt.ids, prompt.images)
        self.segments.append(builder)
        self._text = prompt.text

    async def _turn(self, room: int, *, last: bool) -> StopReason | _Step:
        """One turn of the policy and its calls; why the chain ends with it, or what is to be appended."""
        generation, reply = await self._sample(room)
        if generation.finish is FinishReason.LENGTH:
            return StopReason.MAX_TOKENS  # what was cut may not say what the policy meant: none of its calls is run
        parsed = self._agent.parse(reply)
        calls = _allowed(parsed.calls, self._agent.max_calls_per_turn)
        if not calls:
            self.segments[-1].answered(parsed.answer)
            return StopReason.FINISHED
        if last and not self._may_end(calls):
            return StopReason.MAX_TURNS
        before = self.env_reward
        results, answer, seconds = await self._act(calls)
        reward = None if self.env_reward is None else self.env_reward - (before or 0.0)
        if answer is not None or last:
            self.segments[-1].observed((), results, seconds=seconds, reward=reward)
        if answer is not None:
            self.segments[-1].answered(answer.text if answer.text is not None else parsed.answer)
            return StopReason.FINISHED
        if last:
            return StopReason.MAX_TURNS
        return _Step(reply=reply, sampled_ids=generation.token_ids, results=results, seconds=seconds, reward=reward)

    async def _sample(self, max_tokens: int) -> tuple[Generation, str]:
        """Lets the policy speak, and appends what it said."""
        number = self._generations
        self._generations += 1
        request = GenerationRequest(
            request_id=f"{self.id}/{number}",
            token_ids=self.segments[-1].token_ids,
            max_tokens=max_tokens,
            sampling=self._sampling,
            seed=self._seed_of_turn(number),
            stop_token_ids=self._agent.chat.stop_token_ids,
            greedy=self._greedy,
            priority=_priority(self._rank, number),
            messages=tuple(self._history),
            tools=self._prompts.schemas,
            images=tuple(self.pictures[digest].data for digest in self._shown()),
        )
        generation, seconds = await self._generated(request)
        reply = self._append_reply(generation, seconds)
        self.events.said(reply, generation.finish)
        return generation, reply

    def _shown(self) -> list[str]:
        """Pictures in the order of their placeholders, or of the messages if nobody here knows how they are written."""
        if self._agent.chat.vision is None:
            return shown(self._history)
        return [image.digest for image in self.segments[-1].images]

    async def _generated(self, request: GenerationRequest) -> tuple[Generation, float]:
        self.stage = Stage.GENERATE
        started = perf_counter()
        try:
            with self._clock.generating():
                generation = await self._ask(request)
        except ValueError as error:
            raise InfrastructureError(
                f"the engine cannot serve request {request.request_id}: {error}", where=Stage.REQUEST
            ) from error
        finally:
            seconds = perf_counter() - started
            self._counts["generate_seconds"] += seconds
        if generation.finish is FinishReason.ABORT:
            raise InfrastructureError(f"the engine aborted request {request.request_id}", where=self.stage)
        self._counts["turns"] += 1
        self._counts["prompt_tokens"] += len(request.token_ids)
        self._counts["cached_tokens"] += generation.cached_tokens
        self._counts["inexact_turns"] += not generation.exact
        return generation, seconds

    async def _ask(self, request: GenerationRequest) -> Generation:
        """The engine's answer, told while it comes if somebody listens and the engine can."""
        if not (self.events.listening and isinstance(self._generate, GenerateStream)):
            return await self._generate.generate(request)
        decoder, stops = self._agent.chat.stream_decoder(), set(request.stop_token_ids)

        def tell(delta: Delta) -> None:
            if isinstance(delta, str):
                self.events.delta(delta)
            else:
                self.events.delta(decoder.push([token for token in delta if token not in stops]))

        generation = await self._generate.generate_stream(request, tell)
        self.events.delta(decoder.finish())
        return generation

    def _append_reply(self, generation: Generation, seconds: float) -> str:
        self.stage = Stage.REPLY
        if banned := set(self._agent.chat.banned_token_ids).intersection(generation.token_ids):
            raise PolicyError(
                f"trajectory {self.id} sampled {', '.join(map(str, sorted(banned)))}, tokens that stand for pictures; "
                f"the engine must ban them",
                where=self.stage,
            )
        reply = self._agent.chat.decode(generation.token_ids)
        self.segments[-1].sampled(
            generation.token_ids,
            generation.logprobs,
            {"role": "assistant", "content": reply},
            finish=generation.finish,
            policy_version=generation.policy_version,
            versions=generation.versions,
            seconds=seconds,
        )
        return reply

    def _may_end(self, calls: Sequence[ToolCall | MalformedCall]) -> bool:
        """Whether one of them may finish the chain, or decide what it is worth: then it is run in the last turn too."""
        tools = [self._agent.tools.get(call.name) for call in calls if isinstance(call, ToolCall)]
        return any(tool is not None and tool.may_end for tool in tools)

    async def _act(self, calls: Sequence[ToolCall | MalformedCall]) -> tuple[list[Message], _Ended | None, float]:
        """Run the calls of one turn: their results as messages, what finished the chain if one did, wall seconds."""
        self.stage = Stage.TOOLS
        started = perf_counter()
        try:
            with self._clock.using_tools(), self.events.calls(calls) as told:
                results = await execute_calls(
                    calls,
                    self._agent.tools,
                    self._context,
                    default_timeout=self._agent.tool_timeout_seconds,
                    max_chars=self._agent.max_tool_chars,
                )
                told.extend(results)
        finally:
            seconds = perf_counter() - started
            self._counts["tool_seconds"] += seconds
        self._counts["tool_calls"] += len(calls)
        self._counts["tool_errors"] += sum(result.error is not None for result in results)
        for result in results:
            if result.env_reward is not None:
                self.env_reward = result.env_reward
        ended = next((_Ended(result.answer) for result in results if result.finished), None)
        observed = self._agent.observe(calls, results)
        if any(isinstance(message.get("content"), list) for message in observed):  # in parts, which may be pictures
            take = functools.partial(self.pictures.take, observed, forgiving=True)
            observed, unusable = await call_in_thread(take)
            self._counts["image_errors"] += unusable
        return observed, ended, seconds

    async def _go_on(self, step: _Step) -> bool:
        """Append the bridge to the next turn; False, and only the messages kept, if no context would be left for it."""
        self.stage = Stage.BRIDGE
        bridge = self._bridge(step, step.results)
        length = len(bridge.ids) + (0 if bridge.rewritten else len(self.segments[-1]))
        due = is_due(self._agent.compaction, tokens=length, context_length=self._limits.context_length)
        if due and await self._compact(step):
            return True
        if length >= self._limits.context_length:
            # Nobody will read these ids, and nothing in them is trained on.
            self.segments[-1].observed((), step.results, seconds=step.seconds, reward=step.reward)
            return False
        self._append(bridge, step, step.results)
        return True

    async def _compact(self, step: _Step) -> bool:
        """Go on in a new segment with less in it; False, and nothing changed, if that is not possible."""
        compaction, limit = self._agent.compaction, self._limits.context_length
        if isinstance(compaction, SummaryConfig) and await self._summarise(step, compaction):
            return True
        steps = [*self._history[len(self._head) :], step.said, *step.results]
        room = window_tokens(compaction, context_length=limit)
        window = sliding_window(self._head, steps, self._render, max_tokens=room)
        if window is None or len(window[1]) >= limit:
            return False
        self._history, prompt = window
        self._open(prompt)
        self.segments[-1].observed((), step.results, seconds=step.seconds, reward=step.reward)
        return True

    async def _summarise(self, step: _Step, compaction: SummaryConfig) -> bool:
        """Let the policy write down what it knows, and go on from that; False if there is no room for it."""
        asked = with_request(step.results, compaction.instruction)
        bridge = self._bridge(step, asked)
        length = len(bridge.ids) + (0 if bridge.rewritten else len(self.segments[-1]))
        room = self._limits.room(prompt_tokens=length, sampled_tokens=self._num_sampled)
        if isinstance(room, StopReason) or self._limits.context_length - length < compaction.max_tokens:
            return False
        self._append(bridge, step, asked)
        with self.events.turn(len(self.segments[-1])):
            _, summary = await self._sample(min(room, compaction.max_tokens))
        self.stage = Stage.BRIDGE
        self._head = tuple(with_summary(self._first, summary))
        self._history = list(self._head)
        self._open(self._render(self._history))
        return True

    def _bridge(self, step: _Step, additions: Sequence[Message]) -> Bridge:
        chat = self._agent.chat
        return chat.bridge(
            self._history,
            step.reply,
            step.sampled_ids,
            additions,
            self._prompts.schemas,
            pictures=self.pictures,
            before=self._text,
        )

    def _render(self, messages: Sequence[Message]) -> Prompt:
        return self._agent.chat.prompt(messages, self._prompts.schemas, pictures=self.pictures)

    def _append(self, bridge: Bridge, step: _Step, additions: Sequence[Message]) -> None:
        self._history += [step.said, *additions]
        self._text = bridge.text
        if bridge.rewritten:
            self._open(bridge)
            bridge = Bridge(ids=[])
        self.segments[-1].observed(
            bridge.ids, additions, images=bridge.images, seconds=step.seconds, reward=step.reward
        )


def _allowed(calls: Sequence[ToolCall | MalformedCall], most: int) -> Sequence[ToolCall | MalformedCall]:
    """The calls of a turn that are answered; all beyond `most` are one, which is refused."""
    if len(calls) <= most:
        return calls
    message = f"At most {most} tool calls are taken in a turn, so this one and those after it were not executed."
    return [*calls[:most], MalformedCall(id=calls[most].id, raw="", message=message)]


_METRICS = (
    "turns",
    "tool_calls",
    "tool_errors",
    "image_errors",
    "prompt_tokens",
    "cached_tokens",
    "inexact_turns",
    "generate_seconds",
    "tool_seconds",
)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _priority(rank: int, turn: int) -> int:
    """By rank, then by turn; see `GenerationRequest.priority`."""
    return rank * _MOST_TURNS + min(turn, _MOST_TURNS - 1)
