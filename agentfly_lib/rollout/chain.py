"""One chain: one attempt of an agent at one problem, as one coroutine.

    prompt -> generate -> parse -> run the turn's calls concurrently -> append what came back -> generate -> ...

Token ids go in and out of the engine; what was sampled is kept as sampled, and between two turns stands the bridge
that the chat format renders. If the template rewrites history instead, a new segment begins. `run_chain` always returns
a trajectory: whatever breaks one chain is recorded in it and touches no other. Only two things pass through:
cancellation, and `EngineError`, which says that no chain at all can go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from agentfly_lib.chat import MalformedCall, ToolCall
from agentfly_lib.configs.inference import SamplingConfig
from agentfly_lib.errors import EngineError, InfrastructureError, PolicyError, RolloutError
from agentfly_lib.inference.generate import Generate, Generation, GenerationRequest
from agentfly_lib.rollout.agent import ChainAgent
from agentfly_lib.rollout.clock import ActivityClock
from agentfly_lib.rollout.limits import ChainLimits
from agentfly_lib.rollout.prompts import FirstPrompts
from agentfly_lib.rollout.segment import SegmentBuilder
from agentfly_lib.rollout.stages import Stage
from agentfly_lib.tools import ToolContext, execute_calls
from agentfly_lib.types import Failure, FailureKind, FinishReason, Message, Problem, StopReason, Trajectory

__all__ = ["run_chain"]

logger = logging.getLogger(__name__)


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
    attempt: int = 0,
    prompts: FirstPrompts | None = None,
    clock: ActivityClock | None = None,
) -> Trajectory:
    """Let `agent` work on `problem` once, and return what happened, failures included.

    Args:
        group_id, chain: name the trajectory, `<group_id>/<chain>`.
        seed_of_turn: seed of the turn's sampling, by the turn's number from 0.
        attempt: how many tries of this chain failed before; only recorded.
        prompts: of this agent, if many chains share them.
        clock: told when a generation or tools are in flight.

    Raises:
        EngineError: the engine is gone for good; the collection cannot go on.
        asyncio.CancelledError: the requests and tools in flight were cancelled too.
    """
    run = _Chain(
        agent=agent,
        generate=generate,
        problem=problem,
        trajectory_id=f"{group_id}/{chain}",
        group_id=group_id,
        limits=limits,
        prompts=prompts or FirstPrompts(agent),
        clock=clock or ActivityClock(),
    )
    started = perf_counter()
    stop, failure = StopReason.FAILED, None
    deadline = asyncio.timeout(limits.timeout_seconds)
    try:
        async with deadline:
            stop = await run.play(sampling=sampling, greedy=greedy, seed_of_turn=seed_of_turn)
        run.check_trainable(stop)
    except EngineError:
        raise
    except RolloutError as error:
        failure = Failure(kind=error.kind, message=_one_line(error), where=error.where)
    except TimeoutError as error:
        failure = run.out_of_time(error, expired=deadline.expired())
    except Exception as error:
        # The boundary of a chain: whatever a tool, a template or a bug of ours raises must end this trajectory only.
        # It is not the policy's doing, so it counts as infrastructure, and as an outage if it hits chain after chain.
        logger.exception("trajectory %s broke at %s", run.id, run.stage)
        failure = Failure(
            kind=FailureKind.INFRASTRUCTURE, message=f"{type(error).__name__}: {_one_line(error)}", where=run.stage
        )
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
    )


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
        prompts: FirstPrompts,
        clock: ActivityClock,
    ) -> None:
        self.id = trajectory_id
        self.stage = Stage.PROMPT
        self.segments: list[SegmentBuilder] = []
        self.env_reward: float | None = None
        self._agent = agent
        self._generate = generate
        self._limits = limits
        self._clock = clock
        self._prompts = prompts
        self._history: list[Message] = []
        self._problem = problem
        self._context = ToolContext(trajectory_id=trajectory_id, group_id=group_id, problem=problem)
        self._counts = dict.fromkeys(_METRICS, 0.0)

    async def play(self, *, sampling: SamplingConfig, greedy: bool, seed_of_turn: Callable[[int], int]) -> StopReason:
        """From the first prompt to the end; says why it ended."""
        self._history, prompt = self._prompts.render(self._problem)
        self._open(prompt)
        turn = 0
        while True:
            room = self._limits.room(prompt_tokens=len(self.segments[-1]), sampled_tokens=self._num_sampled)
            if isinstance(room, StopReason):
                return room
            generation, seconds = await self._sample(
                GenerationRequest(
                    request_id=f"{self.id}/{turn}",
                    token_ids=self.segments[-1].token_ids,
                    max_tokens=room,
                    sampling=sampling,
                    seed=seed_of_turn(turn),
                    stop_token_ids=self._agent.chat.stop_token_ids,
                    greedy=greedy,
                    messages=tuple(self._history),
                    tools=self._prompts.schemas,
                )
            )
            turn += 1
            reply = self._append_reply(generation, seconds)
            if generation.finish is FinishReason.LENGTH:
                return StopReason.MAX_TOKENS  # what was cut may not say what the policy meant: none of its calls is run
            calls = self._agent.parse(reply, truncated=False).calls
            if not calls:
                return StopReason.FINISHED
            if turn == self._limits.max_turns:
                return StopReason.MAX_TURNS
            results, finished, seconds = await self._act(calls)
            if finished:
                self.segments[-1].observed((), results, seconds=seconds)
                return StopReason.FINISHED
            if not self._append_results(generation, reply, results, seconds):
                return StopReason.CONTEXT_FULL

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
        # A slow tool is not an outage of ours, and would be as slow again.
        kind = FailureKind.TOOL if self.stage is Stage.TOOLS else FailureKind.INFRASTRUCTURE
        return Failure(kind=kind, message=message, where=self.stage)

    def metrics(self, seconds: float) -> dict[str, float]:
        """Counts and seconds of this chain; `wait_seconds` is what was neither generation nor tools."""
        counts = self._counts
        waited = max(0.0, seconds - counts["generate_seconds"] - counts["tool_seconds"])
        return counts | {
            "seconds": seconds,
            "wait_seconds": waited,
            "sampled_tokens": float(self._num_sampled),
            "missing_logprobs": float(sum(builder.missing_logprobs for builder in self.segments)),
            "segments": float(len(self.segments)),
        }

    @property
    def _num_sampled(self) -> int:
        return sum(builder.num_sampled for builder in self.segments)

    def _open(self, ids: Sequence[int]) -> None:
        builder = SegmentBuilder()
        builder.prompt(ids)
        self.segments.append(builder)

    async def _sample(self, request: GenerationRequest) -> tuple[Generation, float]:
        self.stage = Stage.GENERATE
        started = perf_counter()
        try:
            with self._clock.generating():
                generation = await self._generate.generate(request)
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

    def _append_reply(self, generation: Generation, seconds: float) -> str:
        self.stage = Stage.REPLY
        reply = self._agent.chat.decode(generation.token_ids)
        self.segments[-1].sampled(
            generation.token_ids,
            generation.logprobs,
            {"role": "assistant", "content": reply},
            finish=generation.finish,
            policy_version=generation.policy_version,
            seconds=seconds,
        )
        return reply

    async def _act(self, calls: Sequence[ToolCall | MalformedCall]) -> tuple[list[Message], bool, float]:
        """Run the calls of one turn: their results as messages, whether one finished the chain, wall seconds."""
        self.stage = Stage.TOOLS
        started = perf_counter()
        try:
            with self._clock.using_tools():
                results = await execute_calls(
                    calls,
                    self._agent.tools,
                    self._context,
                    default_timeout=self._agent.tool_timeout_seconds,
                    max_chars=self._agent.max_tool_chars,
                )
        finally:
            seconds = perf_counter() - started
            self._counts["tool_seconds"] += seconds
        self._counts["tool_calls"] += len(calls)
        self._counts["tool_errors"] += sum(result.error is not None for result in results)
        for result in results:
            if result.env_reward is not None:
                self.env_reward = result.env_reward
        messages = [_tool_message(call, result.observation) for call, result in zip(calls, results, strict=True)]
        return messages, any(result.finished for result in results), seconds

    def _append_results(self, generation: Generation, reply: str, results: Sequence[Message], seconds: float) -> bool:
        """Append the bridge to the next turn; False, and only the messages kept, if no context would be left for it."""
        self.stage = Stage.BRIDGE
        bridge = self._agent.chat.bridge(self._history, reply, generation.token_ids, results, self._prompts.schemas)
        self._history += [{"role": "assistant", "content": reply}, *results]
        before = 0 if bridge.rewritten else len(self.segments[-1])
        if before + len(bridge.ids) >= self._limits.context_length:
            # Nobody will read these ids, and nothing in them is trained on.
            self.segments[-1].observed((), results, seconds=seconds)
            return False
        if bridge.rewritten:
            self._open(bridge.ids)
        self.segments[-1].observed(() if bridge.rewritten else bridge.ids, results, seconds=seconds)
        return True


_METRICS = (
    "turns",
    "tool_calls",
    "tool_errors",
    "prompt_tokens",
    "cached_tokens",
    "inexact_turns",
    "generate_seconds",
    "tool_seconds",
)


def _tool_message(call: ToolCall | MalformedCall, observation: str) -> Message:
    message: dict[str, Any] = {"role": "tool", "tool_call_id": call.id, "content": observation}
    if isinstance(call, ToolCall):
        message["name"] = call.name
    return message


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
