"""In which order the training flow does things, whatever each takes: over random schedules, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

import flows.collect
import flows.finetune
import flows.train
from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.errors import ConfigError, EngineError
from agentfly_lib.pipeline.lookahead import Lookahead, StepLine
from agentfly_lib.rollout import ChainSlots
from benchmarks.async_pipeline import Pipeline
from benchmarks.virtual_time import run

SLOTS = 3


@dataclass(frozen=True)
class Plan:
    """How long everything takes, by step or version; numbers beyond the end of a list start again at its beginning."""

    lag: int
    steps: int
    first: int
    chains: list[list[int]]
    """Seconds of each chain of a step's collection."""
    scoring: list[int]
    updates: list[int]
    syncs: list[int]
    evaluations: list[list[int]]
    """Seconds of each chain of a version's evaluation; none where it is not evaluated."""
    checkpoints: list[int]
    """Seconds of a version's checkpoint; 0 for none."""

    @staticmethod
    def of(values: list[Any], number: int) -> Any:
        return values[number % len(values)]


SECONDS = st.integers(1, 9)
PLANS = st.builds(
    Plan,
    lag=st.integers(0, 3),
    steps=st.integers(1, 6),
    first=st.integers(0, 3),
    chains=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=1, max_size=5),
    scoring=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    updates=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    syncs=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    evaluations=st.lists(st.lists(SECONDS, max_size=4), min_size=1, max_size=4),
    checkpoints=st.lists(st.integers(0, 6), min_size=1, max_size=4),
)


@dataclass
class World:
    """An engine, a learner and a run directory; each knows what must not happen to it."""

    plan: Plan
    served: int = -1
    holds: int = -1
    """Version of the learner."""
    learning: str | None = None
    """What the learner is doing."""
    evaluating: bool = False
    going_on: int = 0
    """Stages, of all kinds."""
    most: int = 0
    slots: ChainSlots = field(default_factory=lambda: ChainSlots(SLOTS))
    tokens: dict[int, set[int]] = field(default_factory=dict)
    """Step -> versions that sampled one of its tokens."""
    begun: dict[int, float] = field(default_factory=dict)
    served_at: dict[int, float] = field(default_factory=dict)
    scored: set[int] = field(default_factory=set)
    updated: list[int] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)
    """Step -> chains that wait for a slot."""
    breaks: Callable[[str, int], None] = lambda _stage, _number: None
    instead: dict[str, Any] = field(default_factory=dict)
    """Name -> what is called for a task that otherwise does nothing."""

    # What the flow asks its session.

    @property
    def schedule(self) -> World:
        return self

    def first_open_step(self) -> int:
        return min(self.plan.first, self.plan.steps)

    def finished(self) -> bool:
        return False

    def checkpoint_due(self, version: int) -> bool:
        return bool(Plan.of(self.plan.checkpoints, version))

    def evaluation_due(self, version: int) -> bool:
        return bool(Plan.of(self.plan.evaluations, version))

    # The stages.

    @asynccontextmanager
    async def stage(self, name: str, number: int):
        self.going_on += 1
        self.most = max(self.most, self.going_on)
        try:
            yield
            self.breaks(name, number)
        finally:
            self.going_on -= 1

    @asynccontextmanager
    async def learner(self, doing: str, version: int):
        assert self.learning is None, f"{doing} beside {self.learning}"
        assert self.holds == version
        self.learning = doing
        try:
            yield
        finally:
            self.learning = None

    async def chain(self, rank: int, seconds: int, seen: set[int]) -> None:
        self.waiting[rank] = self.waiting.get(rank, 0) + 1
        await self.slots.acquire(rank)
        self.waiting[rank] -= 1
        try:
            for _ in range(seconds):
                await asyncio.sleep(1)
                seen.add(self.served)
        finally:
            self.slots.release()

    async def start_workers(self, _model: object) -> tuple[str, str]:
        self.served = self.holds = self.first_open_step()
        return "engines", "learner"

    async def sync(self, version: int, _engines: object, _learner: object) -> tuple[str, str]:
        async with self.stage("sync", version), self.learner("sync", version):
            assert not self.evaluating, "weights changed under an evaluation"
            await asyncio.sleep(Plan.of(self.plan.syncs, version))
            self.served, self.served_at[version] = version, asyncio.get_running_loop().time()
        return "engines", "learner"

    async def checkpoint(self, version: int, _learner: object) -> None:
        async with self.stage("checkpoint", version), self.learner("checkpoint", version):
            await asyncio.sleep(Plan.of(self.plan.checkpoints, version))

    async def evaluate(self, version: int, _dataset: object, _engines: object) -> None:
        async with self.stage("evaluate", version):
            seen: set[int] = set()
            self.evaluating = True
            async with asyncio.TaskGroup() as chains:
                for seconds in Plan.of(self.plan.evaluations, version):
                    chains.create_task(self.chain(-1, seconds, seen))
            self.evaluating = False
            assert seen == {version}
            self.evaluated.append(version)

    async def collect(self, step: int, _dataset: object, _engines: object) -> str:
        async with self.stage("collect", step):
            assert step not in self.begun, "collected twice"
            self.begun[step] = asyncio.get_running_loop().time()
            seen = self.tokens.setdefault(step, set())
            async with asyncio.TaskGroup() as chains:
                for seconds in Plan.of(self.plan.chains, step):
                    chains.create_task(self.chain(step, seconds, seen))
            self.scored.add(step)
        return f"shards {step}"

    async def score(self, step: int) -> str:
        async with self.stage("score", step):
            while step not in self.scored:
                await asyncio.sleep(1)
            await asyncio.sleep(Plan.of(self.plan.scoring, step))
        return f"scores {step}"

    async def update(self, step: int, _learner: object) -> tuple[str, str]:
        async with self.stage("update", step), self.learner("update", step):
            assert step in self.scored
            assert not self.evaluating
            await asyncio.sleep(Plan.of(self.plan.updates, step))
            self.holds = step + 1
            self.updated.append(step)
        return f"update {step}", "learner"

    async def record_step(self, shards: str, scores: str, update: str) -> None:
        step = self.updated[-1]
        assert (shards, scores, update) == (f"shards {step}", f"scores {step}", f"update {step}")
        self.recorded.append(step)

    async def flow(self) -> str:
        """The training flow over all of this."""

        @asynccontextmanager
        async def open_session(_config: object):
            yield self

        async def nothing(*_: object) -> str:
            return ""

        stages = {
            name: getattr(self, name)
            for name in (
                "start_workers sync checkpoint evaluate collect score update record_step".split()  # noqa: SIM905
            )
        }
        free = dict.fromkeys(("prepare", "resolve", "check", "catch_up"), nothing) | self.instead

        async def report() -> str:
            return "report"

        config = SimpleNamespace(
            run=SimpleNamespace(steps=self.plan.steps, root=None, name="r"),
            rollout=SimpleNamespace(max_policy_lag=self.plan.lag),
            data=None,
            model=None,
        )
        with patch.multiple(flows.train, open_session=open_session, report=report, **stages, **free):
            return await flows.train.train.fn(config)


@given(PLANS)
@settings(max_examples=150, deadline=None)
def test_whatever_the_schedule_no_token_is_older_than_the_lag_and_nothing_changes_under_its_user(plan: Plan) -> None:
    world = World(plan)
    assert run(world.flow()) == "report"
    first = world.first_open_step()
    steps, versions = list(range(first, plan.steps)), range(first, plan.steps + 1)
    assert world.updated == world.recorded == steps
    assert world.evaluated == [version for version in versions if world.evaluation_due(version)]
    assert sorted(world.begun) == steps
    for step, seen in world.tokens.items():
        assert max(step - plan.lag, first) <= min(seen) <= max(seen) <= step
    assert (world.going_on, world.slots.free) == (0, SLOTS)
    if plan.lag == 0:
        assert world.most <= 2, "collection and scoring go together, and nothing else does"
        assert all(seen == {step} for step, seen in world.tokens.items())
    else:
        # Not later than it may: the moment in which the version that the lag asks for is served.
        assert world.begun == {step: world.served_at[max(step - plan.lag, first)] for step in steps}


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_long_tailed_chains_cost_little_more_than_an_ideal_pipeline_of_this_lag(seed: int, lag: int) -> None:
    """The bar of `benchmarks.async_pipeline`, over chains of log-normal length in virtual time."""
    random = np.random.default_rng(seed)
    chains = np.minimum(random.lognormal(np.log(40), 1.2, (20, 32)), 1500).astype(int) + 1
    updates = random.integers(20, 200, 20)
    plan = Plan(
        lag=lag,
        steps=20,
        first=0,
        chains=chains.tolist(),
        scoring=[1],
        updates=updates.tolist(),
        syncs=[1],
        evaluations=[[]],
        checkpoints=[0],
    )
    world = World(plan, slots=ChainSlots(16))
    run(world.flow())
    served = [world.served_at[version] for version in range(21)]
    found = Pipeline(
        lag=lag,
        steps=np.diff(served).tolist(),
        updates=updates.tolist(),
        longest=chains.max(axis=1).tolist(),
        chains=chains.sum(axis=1).tolist(),
        slots=16,
    )
    assert 0.85 < found.ideal(3) / found.measured(3) <= 1.0


def test_an_ideal_pipeline_by_hand() -> None:
    def ideal(lag: int, slots: int = 100) -> float:
        three = Pipeline(
            lag=lag, steps=[0.0] * 3, updates=[2, 3, 4], longest=[10, 20, 10], chains=[50, 90, 60], slots=slots
        )
        return three.ideal(0)

    assert ideal(0) == (10 + 2) + (20 + 3) + (10 + 4)
    # Lag 1: collections 0 and 1 begin at 0. Version 1 at 12; version 2 at 20 + 3; collection 2 begins at 12: 23 + 4.
    assert ideal(1) == 27
    # Lag 2: all begin at 0. Version 1 at 12, version 2 at 23, version 3 at 27 all the same.
    assert ideal(2) == 27
    assert ideal(2, slots=4) == 50 + 4, "all chains' seconds in four slots, and the last update"


def test_an_ideal_pipeline_does_not_count_chains_that_were_done_before() -> None:
    # Collections 0, 1 and 2 begin at 0 and are done at 30; 3 and 4 begin at 30, with versions 1 and 2, and take 20.
    five = Pipeline(
        lag=2, steps=[30, 0, 0, 20, 0], updates=[20, 0, 0, 0, 0], longest=[10] * 5, chains=[20] * 5, slots=2
    )
    assert five.ideal(1) == five.measured(1) == 20


def plain_plan(lag: int, *, steps: int, checkpoints: list[int]) -> Plan:
    """Every step alike: a long chain and a short one, an evaluation of every version."""
    return Plan(
        lag=lag,
        steps=steps,
        first=0,
        chains=[[9, 2]],
        scoring=[1],
        updates=[4],
        syncs=[1],
        evaluations=[[2]],
        checkpoints=checkpoints,
    )


class Broken(EngineError):
    pass


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("stage", ["collect", "score", "update", "sync", "evaluate", "checkpoint"])
def test_what_breaks_anywhere_ends_everything_at_once_and_is_what_one_hears_of(stage: str, lag: int) -> None:
    plan = plain_plan(lag, steps=6, checkpoints=[2])
    world = World(plan)

    def breaks(name: str, number: int) -> None:
        if (name, number) == (stage, 2):
            raise Broken(f"{name} {number}")

    world.breaks = breaks

    async def scene() -> tuple[BaseException, int]:
        try:
            await world.flow()
        except Broken as error:  # itself, in no group
            return error, len(asyncio.all_tasks())
        raise AssertionError("it went on")

    error, left = run(scene())
    assert str(error) == f"{stage} 2"
    assert (left, world.going_on) == (1, 0), "only this test's own task is left"
    assert world.slots.free == SLOTS
    assert world.recorded == [0, 1][: len(world.recorded)]
    assert lag or world.recorded == [0, 1]


@pytest.mark.parametrize("lag", [0, 2])
def test_a_flow_that_is_cancelled_leaves_nothing_behind(lag: int) -> None:
    plan = plain_plan(lag, steps=9, checkpoints=[0])

    async def scene(after: float) -> None:
        world = World(plan)
        task = asyncio.create_task(world.flow())
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (len(asyncio.all_tasks()), world.going_on, world.slots.free) == (1, 0, SLOTS)

    for after in (0.5, 2.5, 7.5, 14.5, 21.5, 30.5):
        run(scene(after))


def test_what_the_check_refuses_starts_nothing() -> None:
    async def refuse(*_: object) -> None:
        raise ConfigError("they do not fit together")

    world = World(plain_plan(0, steps=1, checkpoints=[0]), instead={"check": refuse})
    with pytest.raises(ConfigError, match="do not fit"):
        run(world.flow())
    assert world.served == world.holds == -1, "no engine and no learner were started"


def test_a_collection_without_training_checks_starts_engines_alone_and_scores_beside_each_step() -> None:
    done: list[str] = []
    opened: list[tuple[str, bool]] = []

    def stage(name: str, result: Any = None) -> Any:
        async def called(*_: object) -> Any:
            done.append(name)
            return result

        return called

    @asynccontextmanager
    async def open_session(config: RunConfig, *, trains: bool):
        opened.append((config.run.name, trains))
        yield

    async def collect(step: int, dataset: str, engines: str) -> str:
        assert (dataset, engines) == ("dataset", "engines")
        done.append(f"collect {step}")
        await asyncio.sleep(5)
        done.append(f"collected {step}")
        return f"shards {step}"

    async def score(step: int) -> None:
        await asyncio.sleep(1)
        done.append(f"scoring {step}")
        await asyncio.sleep(9)
        done.append(f"scored {step}")

    with patch.multiple(
        flows.collect,
        open_session=open_session,
        prepare=stage("prepare", "dataset"),
        resolve=stage("resolve", "model"),
        check=stage("check"),
        start_engines=stage("start", "engines"),
        collect_step=collect,
        score=score,
    ):
        collected = run(flows.collect.collect.fn(load_config(Path("recipes/ci.toml")), None, steps=2))
    assert collected == ["shards 0", "shards 1"]
    assert opened == [("ci-collect", False)]
    assert done == ["prepare", "resolve", "check", "start"] + [
        f"{what} {step}" for step in (0, 1) for what in ("collect", "scoring", "collected", "scored")
    ]


def test_fine_tuning_first_sends_what_a_killed_run_had_recorded_and_not_sent() -> None:
    done: list[str] = []

    def stage(name: str, result: Any = None) -> Any:
        async def called(*_: object) -> Any:
            done.append(name)
            return result

        return called

    @asynccontextmanager
    async def open_session(_config: object):
        yield SimpleNamespace(
            schedule=SimpleNamespace(first_open_step=lambda: 3, checkpoint_due=lambda version: version == 4)
        )

    names = ("resolve", "choose", "catch_up", "start_learner", "lay_out", "checkpoint", "record_update")
    stages = {name: stage(name) for name in names} | {"update": stage("update", ("report", "learner"))}
    config = SimpleNamespace(run=SimpleNamespace(steps=4), model=None)
    with patch.multiple(flows.finetune, open_session=open_session, finetune_report=lambda *_: "report", **stages):
        assert run(flows.finetune.finetune.fn(config)) == "report"  # type: ignore[arg-type]
    assert done == [
        *("resolve", "choose", "catch_up", "start_learner", "lay_out", "update", "record_update", "checkpoint")
    ]


def test_nothing_is_collected_before_a_version_is_served() -> None:
    async def scene() -> None:
        async with Lookahead(lag=1, steps=3) as ahead:
            with pytest.raises(RuntimeError, match="before a version is served"):
                await ahead.rollouts(0)

    run(scene())


def test_steps_go_through_the_line_in_their_order_and_one_that_fails_stops_nobody() -> None:
    line, through = StepLine(3), []

    async def step(number: int, seconds: float, *, fails: bool = False) -> None:
        async with line.place(number):
            await asyncio.sleep(seconds)
            through.append(number)
            if fails:
                raise Broken("gone")

    async def scene() -> None:
        waits = [asyncio.create_task(step(number, 1.0, fails=number == 4)) for number in (6, 5, 4, 3)]
        await asyncio.sleep(2.5)
        waits[1].cancel()
        found = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in found] == [type(None), asyncio.CancelledError, Broken, type(None)]
        await step(4, 1.0)  # tried again, nobody is before it
        await step(7, 1.0)

    run(scene())
    assert through == [3, 4, 6, 4, 7]
