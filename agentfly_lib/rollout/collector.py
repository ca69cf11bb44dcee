"""Collects the trajectories of one step: N problems times G chains, as many at a time as the engine should see.

The next chain in order begins when there is a slot for it, and keeps the slot to its end, so a chain that has begun
never waits behind one that has not, and no chain waits for another. Collections at the same time may share their slots
(`ChainSlots`). When the last chain of a group ends, the group goes to the writer, which makes it durable while others
go on. However the collection ends (done, out of time, outage,
cancelled, killed), finished groups stay; the next `collect` over the same store asks only for the missing ones, with
their seeds.

    chain fails for its own reason       recorded in its trajectory; no other chain notices
    infrastructure fails                 the chain is tried again, a few times; then recorded
    it fails again and again in a row    `EngineError`, after the finished groups are written
    the stage's time is over             unfinished groups are dropped, with the reason, and counted
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from agentfly_lib.configs.run import RolloutConfig
from agentfly_lib.errors import EngineError
from agentfly_lib.inference.generate import Generate
from agentfly_lib.resources import ResourceEngine
from agentfly_lib.rollout.agent import ChainAgent
from agentfly_lib.rollout.breaker import CircuitBreaker
from agentfly_lib.rollout.chain import run_chain
from agentfly_lib.rollout.clock import Activity, ActivityClock, CollectTimes
from agentfly_lib.rollout.groups import ChainPlace, OpenGroups
from agentfly_lib.rollout.limits import ChainLimits
from agentfly_lib.rollout.progress import CollectProgress
from agentfly_lib.rollout.prompts import FirstPrompts
from agentfly_lib.rollout.seeds import RolloutSeeds
from agentfly_lib.rollout.slots import ChainSlots
from agentfly_lib.rollout.stages import is_transient
from agentfly_lib.rollout.writer import GroupWriter
from agentfly_lib.store.manifest import RolloutManifest, RolloutStore
from agentfly_lib.together import first_cause
from agentfly_lib.types import FailureKind, Problem, Trajectory
from agentfly_lib.visible import visible

__all__ = ["Collected", "collect"]

logger = logging.getLogger(__name__)

_BACKOFF_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A complete collection."""

    manifest: RolloutManifest
    seconds: CollectTimes
    """Where this attempt's wall time went."""
    progress: CollectProgress
    """The final counts."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What the resource engine counted, see `ResourceEngine.metrics`."""


async def collect(
    agent: ChainAgent,
    generate: Generate,
    problems: Sequence[tuple[str, Problem]],
    store: RolloutStore,
    *,
    config: RolloutConfig,
    seeds: RolloutSeeds,
    greedy: bool = False,
    finish: bool = True,
    resources: ResourceEngine | None = None,
    slots: ChainSlots | None = None,
    rank: int = 0,
    activity: Activity | None = None,
    on_progress: Callable[[CollectProgress], None] | None = None,
    backoff_seconds: float = _BACKOFF_SECONDS,
) -> Collected:
    """Collect the groups that `store` does not have yet and complete it.

    Args:
        problems: (group id, problem) of the whole collection, the same in every attempt: a problem's place decides its
            seeds. Groups that are stored are skipped.
        config: limits, sampling, concurrency, retries. `config.chains` is the size of a group.
        finish: False leaves the store open for further groups, unless the stage's time is over.
        resources: lends what tools need, and stays open; without one the collection has its own.
        slots: shared with other collections; without them `config.max_concurrency` chains are in flight.
        rank: in which order collections that share slots get them, the lowest first.
        activity: told of what is in flight too, in several collections.
        on_progress: called in the event loop when a chain ends, and at the end.
        backoff_seconds: pause before the first retry of a chain; doubled before each further one.

    Raises:
        EngineError: infrastructure failed too often in a row; finished groups are stored, the store is not complete.
        ShardError: a shard or the manifest could not be written.
        asyncio.CancelledError: chains in flight were cancelled, finished groups are stored.
    """
    missing = _missing_groups(problems, store)
    kept = len(problems) - len(missing)
    collection = _Collection(
        agent=agent,
        generate=generate,
        store=store,
        config=config,
        seeds=seeds,
        greedy=greedy,
        finish=finish,
        slots=slots or ChainSlots(config.max_concurrency),
        rank=rank,
        activity=activity,
        on_progress=on_progress,
        backoff_seconds=backoff_seconds,
        groups=OpenGroups(missing, config.chains),
        progress=CollectProgress(
            groups=len(problems),
            groups_done=kept,
            chains=len(problems) * config.chains,
            chains_done=kept * config.chains,
        ),
    )
    try:
        async with AsyncExitStack() as own:
            return await collection.run(resources or await own.enter_async_context(ResourceEngine()))
    except EngineError as error:
        done = len(store.done)
        raise EngineError(
            f"{error}. {done} of {len(problems)} groups are stored and will be kept: see that the engine is up, then "
            "run the same command again to collect the rest"
        ) from error


class _Collection:
    """One attempt at a collection."""

    def __init__(
        self,
        *,
        agent: ChainAgent,
        generate: Generate,
        store: RolloutStore,
        config: RolloutConfig,
        seeds: RolloutSeeds,
        greedy: bool,
        finish: bool,
        slots: ChainSlots,
        rank: int,
        activity: Activity | None,
        on_progress: Callable[[CollectProgress], None] | None,
        backoff_seconds: float,
        groups: OpenGroups,
        progress: CollectProgress,
    ) -> None:
        self._agent = agent
        self._generate = generate
        self._store = store
        self._config = config
        self._seeds = seeds
        self._greedy = greedy
        self._finish = finish
        self._slots = slots
        self._rank = rank
        self._on_progress = on_progress
        self._backoff_seconds = backoff_seconds
        self._groups = groups
        self._progress = progress
        self._limits = ChainLimits.from_config(config, max_turns=agent.max_turns)
        self._prompts = FirstPrompts(agent)
        self._clock = ActivityClock(whole=activity)
        self._breaker = CircuitBreaker(config.max_consecutive_failures)
        self._writer = GroupWriter(
            store.append, flush_seconds=config.flush_seconds, groups_per_part=config.groups_per_part
        )

    async def run(self, resources: ResourceEngine) -> Collected:
        dropped: dict[str, str] = {}
        for tool in self._agent.tools.values():
            if tool.needs is not None:
                resources.warm_up(tool.needs)
        try:
            await self._fill(resources)
        except TimeoutError:
            dropped = self._give_up()
        except BaseExceptionGroup as group:
            raise first_cause(group) from None
        finally:
            # On every way out, cancellation included: what is finished is written.
            await self._writer.drain()
        if self._finish or dropped:
            await asyncio.to_thread(self._store.finish, dropped)
        manifest = self._store.manifest
        self._report(dropped_groups=len(dropped))
        return Collected(
            manifest=manifest, seconds=self._clock.times(), progress=self._progress, resources=resources.metrics()
        )

    async def _fill(self, resources: ResourceEngine) -> None:
        """Run every missing chain. The writer is the body of the task group: it ends when the last group is written."""
        if not len(self._groups):
            return
        async with asyncio.timeout(self._config.stage_timeout_seconds), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._begin_chains(tasks, resources))
            await self._writer.run()

    async def _begin_chains(self, tasks: asyncio.TaskGroup, resources: ResourceEngine) -> None:
        for place in self._groups.places:
            await self._slots.acquire(self._rank)
            chain = tasks.create_task(self._work(place, resources))
            # Not in the chain itself: one that is cancelled before it has begun would keep its slot.
            chain.add_done_callback(lambda _: self._slots.release())

    async def _work(self, place: ChainPlace, resources: ResourceEngine) -> None:
        trajectory = await self._run_with_retries(place, resources)
        group = self._groups.add(place, trajectory)
        if group is not None:
            self._writer.put(group)
        if not len(self._groups):
            self._writer.close()
        self._report(
            groups_done=self._progress.groups_done + (group is not None),
            chains_done=self._progress.chains_done + 1,
            failures=self._progress.failures + (trajectory.failure is not None),
        )

    async def _run_with_retries(self, place: ChainPlace, resources: ResourceEngine) -> Trajectory:
        attempt = 0
        while True:
            trajectory = await run_chain(
                self._agent,
                self._generate,
                place.problem,
                group_id=place.group_id,
                chain=place.chain,
                limits=self._limits,
                sampling=self._config.sampling,
                greedy=self._greedy,
                seed_of_turn=lambda turn: self._seeds.turn(place.group_index, place.chain, turn),
                rank=self._rank,
                attempt=attempt,
                prompts=self._prompts,
                clock=self._clock,
                resources=resources,
            )
            self._count(sampled_tokens=self._progress.sampled_tokens + trajectory.num_sampled)
            failure = trajectory.failure
            if failure is None or failure.kind is not FailureKind.INFRASTRUCTURE:
                self._breaker.passed()
                return trajectory
            self._breaker.failed(failure, group_id=place.group_id)
            attempt += 1
            if attempt > self._config.retries or not is_transient(failure):
                return replace(trajectory, failure=replace(failure, attempts=attempt))
            logger.warning("trajectory %s is tried again after: %s", trajectory.id, visible(failure.message))
            self._count(retries=self._progress.retries + 1)
            await asyncio.sleep(self._backoff_seconds * 2 ** (attempt - 1))

    def _give_up(self) -> dict[str, str]:
        """Why each unfinished group is dropped: the stage's time is over."""
        dropped = {
            group_id: f"{ended} of {self._config.chains} chains had ended when the collection reached its limit of "
            f"{self._config.stage_timeout_seconds:g} s (rollout.stage_timeout_seconds)"
            for group_id, ended in self._groups.unfinished().items()
        }
        logger.warning("the time of the collection is over: %d groups are dropped", len(dropped))
        return dropped

    def _count(self, **changes: int) -> None:
        self._progress = replace(self._progress, **changes)

    def _report(self, **changes: int) -> None:
        self._count(**changes)
        if self._on_progress is not None:
            self._on_progress(self._progress)


def _missing_groups(problems: Sequence[tuple[str, Problem]], store: RolloutStore) -> list[tuple[int, str, Problem]]:
    """Index, group id and problem of the groups that the store lacks."""
    missing = set(store.missing)
    if unknown := missing - {group_id for group_id, _ in problems}:
        raise ValueError(f"the store asks for {len(unknown)} groups that have no problem here, {min(unknown)} for one")
    if len({group_id for group_id, _ in problems}) != len(problems):
        raise ValueError("group ids must be unique within a collection")
    return [(index, group_id, problem) for index, (group_id, problem) in enumerate(problems) if group_id in missing]
