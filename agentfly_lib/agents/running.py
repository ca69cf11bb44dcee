"""One run of an agent: every conversation a few times, at the same time, and then the rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentfly_lib.agents.generation import GenerationConfig
from agentfly_lib.agents.result import RunResult
from agentfly_lib.inference import Generate
from agentfly_lib.resources import ResourceEngine
from agentfly_lib.rewards.reward import Reward
from agentfly_lib.rewards.scoring import score_groups, with_rewards
from agentfly_lib.rollout import ChainAgent, ChainLimits, RolloutSeeds, run_chain
from agentfly_lib.rollout.events import ChainEvent
from agentfly_lib.rollout.prompts import FirstPrompts
from agentfly_lib.together import together
from agentfly_lib.types import Problem, Trajectory, TrajectoryGroup

__all__ = ["AgentRun"]


@dataclass(frozen=True, kw_only=True, eq=False)
class AgentRun:
    """What is to be run; `start` runs it."""

    agent: ChainAgent
    reward: Reward | None
    """None leaves trajectories without one."""
    engine: Generate
    problems: Sequence[Problem]
    num_chains: int
    generation: GenerationConfig
    max_turns: int
    context_length: int
    chain_timeout_seconds: float
    reward_timeout_seconds: float
    max_concurrency: int

    async def start(self, on_event: Callable[[ChainEvent], None] | None = None) -> RunResult:
        """Run the chains, then score them. Raises `EngineError`; cancelling it cancels what is in flight."""
        async with ResourceEngine() as resources:
            for tool in self.agent.tools.values():
                if tool.needs is not None:
                    resources.warm_up(tool.needs)
            chains = await self._chains(resources, on_event)
        groups = [
            TrajectoryGroup(
                id=str(index),
                problem=problem,
                trajectories=tuple(chains[index * self.num_chains : (index + 1) * self.num_chains]),
            )
            for index, problem in enumerate(self.problems)
        ]
        if self.reward is not None:
            groups = await self._scored(self.reward, groups)
        return RunResult(groups=tuple(groups))

    async def _chains(
        self, resources: ResourceEngine, on_event: Callable[[ChainEvent], None] | None
    ) -> list[Trajectory]:
        """All chains, in the order of the problems and then of the chains."""
        generation, prompts = self.generation, FirstPrompts(self.agent)
        seeds = RolloutSeeds(run_seed=generation.seed, step=0)
        free = asyncio.Semaphore(self.max_concurrency)
        limits = ChainLimits(
            max_turns=self.max_turns,
            max_turn_tokens=generation.max_tokens,
            max_sampled_tokens=generation.max_tokens * self.max_turns,
            context_length=self.context_length,
            timeout_seconds=self.chain_timeout_seconds,
        )

        async def chain(index: int, number: int) -> Trajectory:
            async with free:
                return await run_chain(
                    self.agent,
                    self.engine,
                    self.problems[index],
                    group_id=str(index),
                    chain=number,
                    limits=limits,
                    sampling=generation.sampling,
                    greedy=generation.greedy,
                    seed_of_turn=lambda turn: seeds.turn(index, number, turn),
                    prompts=prompts,
                    resources=resources,
                    on_event=on_event,
                )

        return await together(
            [chain(index, number) for index in range(len(self.problems)) for number in range(self.num_chains)]
        )

    async def _scored(self, reward: Reward, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        scores = await score_groups(
            reward, groups, timeout=self.reward_timeout_seconds, max_concurrency=self.max_concurrency, retries=0
        )
        return with_rewards(groups, scores)
