"""`HFAgent`: an agent around a Hugging Face model, for use on its own.

    agent = HFAgent("Qwen/Qwen2.5-3B-Instruct", tools=[calculator], backend_config={"backend": "async_vllm"})
    result = await agent.run(messages=[{"role": "user", "content": "What is 1 + 1?"}], max_turns=3, num_chains=1)
    result.trajectories, result.rewards

A training run uses the same `Agent` value through `build_agent`, with engines of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentfly_lib.agents.agent import Agent, as_reward, as_tools
from agentfly_lib.agents.backend import DEFAULT_CONTEXT_LENGTH, HostedVllm, open_backend
from agentfly_lib.agents.generation import GenerationConfig
from agentfly_lib.agents.inputs import to_problems
from agentfly_lib.agents.result import RunResult
from agentfly_lib.chat import ChatFormat
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference import Generate
from agentfly_lib.rewards.reward import Reward, reward
from agentfly_lib.rewards.scoring import score_groups
from agentfly_lib.tools import Tool
from agentfly_lib.types import Problem, Trajectory, TrajectoryGroup

__all__ = ["HFAgent"]


@reward(inline=True)
def _unscored() -> None:
    """Stands where no reward was given."""


class HFAgent:
    """A model, its tools and its reward. Settings never change; only the last result and the engine are state."""

    def __init__(
        self,
        model_name_or_path: str | Path,
        tools: Sequence[Tool | str] = (),
        *,
        reward_fn: Reward | str | None = None,
        template: str | None = None,
        system_prompt: str | None = None,
        backend_config: Mapping[str, Any] | None = None,
        backend: Generate | str | None = None,
        max_turns: int = 3,
        tool_timeout_seconds: float = 30.0,
        max_tool_chars: int = 4096,
        reward_timeout_seconds: float = 30.0,
        chain_timeout_seconds: float = 600.0,
        max_concurrency: int = 128,
    ) -> None:
        """Loads the tokenizer; the engine starts at the first run.

        tools, reward_fn: objects made by `@tool` and `@reward`, or their names.
        template: see `chat.templates`; unset means the model's own.
        backend_config: `{"backend": "async_vllm", ...}` with settings of `InferenceConfig` and `context_length`.
        backend: an engine of your own (anything that satisfies `inference.Generate`), or a backend's name.

        Raises `ConfigError` for a name or setting that cannot be, `ModelError` for a model that cannot be used.
        """
        options = dict(backend_config or {})
        if isinstance(backend, str):
            options.setdefault("backend", backend)
        checked_tools = as_tools(tools)
        checked_reward = _unscored if reward_fn is None else as_reward(reward_fn)
        chat = ChatFormat.from_pretrained(model_name_or_path, template=template)
        self.agent = Agent(
            chat=chat,
            tools=checked_tools,
            reward=checked_reward,
            system_prompt=system_prompt,
            max_turns=max_turns,
            tool_timeout_seconds=tool_timeout_seconds,
            max_tool_chars=max_tool_chars,
        )
        """The value that chains run on."""
        if backend is None or isinstance(backend, str):
            self._engine, self._context_length = open_backend(options, model=model_name_or_path, chat=chat)
        else:
            self._engine = backend
            self._context_length = options.get("context_length", DEFAULT_CONTEXT_LENGTH)
        self._reward_timeout_seconds = reward_timeout_seconds
        self._chain_timeout_seconds = chain_timeout_seconds
        self._max_concurrency = max_concurrency
        self._last: RunResult | None = None

    @property
    def trajectories(self) -> list[Trajectory]:
        """Of the last run; empty before the first."""
        return self._last.trajectories if self._last else []

    @property
    def rewards(self) -> list[float | None]:
        """Of the last run, one per trajectory; None where it was not or could not be scored."""
        return self._last.rewards if self._last else []

    async def run(
        self,
        messages: Any,
        max_turns: int | None = None,
        num_chains: int = 1,
        generation_config: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Lets the agent work on each conversation `num_chains` times, and scores what came of it.

        messages: one conversation, a question, a row with `messages` or `question` and columns for tools and rewards,
            or a list of these.
        generation_config: `max_tokens` (of a turn), `temperature`, `top_p`, `top_k`, `min_p`, `seed`.

        A chain that breaks is a trajectory with `failure` set. Raises `DataError` or `ConfigError` before anything is
        generated, and `EngineError` if the engine is gone.
        """
        if num_chains < 1:
            raise ConfigError(f"num_chains={num_chains} must be at least 1")
        agent = self.agent if max_turns is None else dataclasses.replace(self.agent, max_turns=max_turns)
        if agent.max_turns < 1:
            raise ConfigError(f"max_turns={agent.max_turns} must be at least 1")
        problems = to_problems(messages)
        for problem in problems:
            agent.reward.check_columns(problem.columns)
        groups = await self._collect(agent, problems, num_chains, GenerationConfig.read(generation_config))
        if agent.reward is not _unscored:
            groups = await self._score(agent, groups)
        self._last = RunResult(groups=tuple(groups))
        return self._last

    def run_sync(self, messages: Any, **options: Any) -> RunResult:
        """`run`, for scripts without an event loop."""
        return asyncio.run(self.run(messages, **options))

    async def close(self) -> None:
        """Ends the engine, if this agent started it."""
        if isinstance(self._engine, HostedVllm):
            await self._engine.close()

    async def __aenter__(self) -> HFAgent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _collect(
        self, agent: Agent, problems: Sequence[Problem], num_chains: int, generation: GenerationConfig
    ) -> list[TrajectoryGroup]:
        from agentfly_lib.rollout import ChainLimits, RolloutSeeds, run_chain

        seeds = RolloutSeeds(run_seed=generation.seed, step=0)
        free = asyncio.Semaphore(self._max_concurrency)
        limits = ChainLimits(
            max_turns=agent.max_turns,
            max_turn_tokens=generation.max_tokens,
            max_sampled_tokens=generation.max_tokens * agent.max_turns,
            context_length=self._context_length,
            timeout_seconds=self._chain_timeout_seconds,
        )

        async def chain(index: int, number: int) -> Trajectory:
            async with free:
                return await run_chain(
                    agent,
                    self._engine,
                    problems[index],
                    group_id=str(index),
                    chain=number,
                    limits=limits,
                    sampling=generation.sampling,
                    greedy=generation.greedy,
                    seed_of_turn=lambda turn: seeds.turn(index, number, turn),
                )

        chains = await _all_or_first_error(
            [chain(index, number) for index in range(len(problems)) for number in range(num_chains)]
        )
        return [
            TrajectoryGroup(
                id=str(index),
                problem=problem,
                trajectories=tuple(chains[index * num_chains : (index + 1) * num_chains]),
            )
            for index, problem in enumerate(problems)
        ]

    async def _score(self, agent: Agent, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        scores = await score_groups(
            agent.reward,
            groups,
            timeout=self._reward_timeout_seconds,
            max_concurrency=self._max_concurrency,
            retries=0,
        )
        by_id = {score.trajectory_id: score for score in scores}
        return [
            dataclasses.replace(
                group,
                trajectories=tuple(
                    dataclasses.replace(
                        trajectory, reward=by_id[trajectory.id].reward, reward_parts=by_id[trajectory.id].parts
                    )
                    for trajectory in group.trajectories
                ),
            )
            for group in groups
        ]


async def _all_or_first_error(work: Sequence[Coroutine[Any, Any, Trajectory]]) -> list[Trajectory]:
    """Results in order. The first error cancels the rest and is raised as it is, not inside a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(item) for item in work]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
