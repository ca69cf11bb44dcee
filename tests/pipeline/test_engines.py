"""The keeper of engines: who sleeps when, what is sent, how a lost engine comes back; told by the calls it makes."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from agentfly_lib.errors import CanaryError, EngineError
from agentfly_lib.inference.canary import CanaryReport
from agentfly_lib.inference.placement import Placement
from agentfly_lib.inference.source import AdapterFolder
from agentfly_lib.inference.weight_update import WeightUpdate
from agentfly_lib.pipeline.learning import Learning
from agentfly_lib.pipeline.times import StepTimes
from agentfly_lib.refs import EngineRef, LearnerRef, ModelRef
from agentfly_lib.types import Canary

pytestmark = pytest.mark.stack

LEARNER = LearnerRef(names=("rank",), namespace="n", policy_version=0)


class Machines:
    """Engines and learner, as far as their keeper sees them."""

    def __init__(self, names=("engine-0", "engine-1")) -> None:
        self.names = names
        self.log: list[str] = []
        self.versions = dict.fromkeys(names, 0)
        self.asleep: set[str] = set()
        self.dead: set[str] = set()
        self.failures: dict[str, Exception] = {}

    def note(self, what: str) -> None:
        self.log.append(what)
        if (error := self.failures.pop(what, None)) is not None:
            raise error

    def ensure(self, config, model, *, namespace, policy_version, learner, on_start):
        for name in sorted(self.dead):
            self.note(f"start {name}")
            on_start(name)
            self.versions[name] = policy_version
            self.asleep.discard(name)
        self.dead.clear()
        return EngineRef(names=self.names, namespace="n", policy_version=min(self.versions.values()))

    def load(self, ref, source, *, version, canary, seconds):
        self.note(f"load {version} from {source.path.name if isinstance(source, AdapterFolder) else source.name}")
        assert not self.asleep & set(ref.names), "weights for an engine that sleeps"
        self.versions |= dict.fromkeys(ref.names, version)
        report = CanaryReport(mean_difference=0.0, max_difference=0.0, mean_difference_before=1.0)
        update = WeightUpdate(version=version, canary=report)
        return ref.model_copy(update={"policy_version": version}), update

    def prove(self, ref, canary, *, tolerance, seconds):
        self.note(f"prove {' '.join(ref.names)}")

    def status(self, ref):
        return [SimpleNamespace(policy_version=self.versions[name]) for name in ref.names]

    def sleep(self, ref, level, *, seconds):
        self.note(f"sleep {level}")
        self.asleep |= set(ref.names)
        if level == 2:
            self.versions |= dict.fromkeys(ref.names, -1)

    def wake(self, ref, *, seconds):
        self.note("wake")
        self.asleep.clear()


class FakeLearner:
    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    async def canary(self):
        return Canary(token_ids=(1, 2), logprobs=(-1.0,))

    async def export(self, path, version):
        self._machines.note(f"export {version}")
        return await self.canary()

    async def export_adapter(self, path, version):
        self._machines.note(f"export adapter {version}")
        return await self.canary()


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """`kept(machines, kind="split", lora=False)`: a keeper of these machines, its clock, and its background work."""
    from agentfly_lib.pipeline import engines as module

    def make(machines: Machines, kind="split", *, lora=False, trains=True):
        for name in ("ensure", "load", "prove", "status", "sleep", "wake"):
            real = {"ensure": "ensure_engines", "load": "load_weights", "status": "engine_status"}.get(name)
            monkeypatch.setattr(
                module, real or {"prove": "prove"}.get(name, f"{name}_engines"), getattr(machines, name)
            )
        monkeypatch.setattr(module, "find_engines", lambda names, namespace: {name: f"actor {name}" for name in names})
        monkeypatch.setattr(module, "gpu_count", lambda: 0)
        monkeypatch.setattr(module, "Learner", lambda ref, config: FakeLearner(machines))
        monkeypatch.setattr(module, "place", lambda config, gpus, learner: Placement(kind=kind))
        work: list[asyncio.Task[None]] = []
        config = SimpleNamespace(
            learner=SimpleNamespace(lora=SimpleNamespace(rank=8) if lora else None),
            inference=SimpleNamespace(
                canary_tolerance=1e-3,
                lora_sync="adapter" if lora else "merged",
                replicas=len(machines.names),
                tensor_parallel=1,
                update_timeout_seconds=7.0,
            ),
        )
        times = StepTimes()
        keeper = module.EngineKeeper(
            config,  # pyright: ignore[reportArgumentType]
            model=ModelRef(path=tmp_path, fingerprint="m"),
            namespace="n",
            trains=trains,
            exchange=SimpleNamespace(folder=tmp_path),  # pyright: ignore[reportArgumentType]
            learning=Learning(),
            times=times,
            background=SimpleNamespace(start=lambda work_: work.append(asyncio.ensure_future(work_))),  # pyright: ignore[reportArgumentType]
        )
        return keeper, times, work

    return make


async def steps(keeper, versions) -> None:
    for version in versions:
        await keeper.serve(version, await keeper.ask(), LEARNER)
        await keeper.rest()


async def test_colocated_engines_sleep_before_each_update_and_wake_before_the_next_weights(kept):
    machines = Machines()
    keeper, _, _ = kept(machines, "colocated")
    await steps(keeper, range(3))
    assert machines.log == [
        *("wake", "prove engine-0 engine-1", "sleep 2"),
        *("wake", "export 1", "load 1 from policy.safetensors", "sleep 2"),
        *("wake", "export 2", "load 2 from policy.safetensors", "sleep 2"),
    ]


async def test_split_engines_never_sleep(kept):
    machines = Machines()
    keeper, _, _ = kept(machines)
    await steps(keeper, range(2))
    assert machines.log == ["prove engine-0 engine-1", "export 1", "load 1 from policy.safetensors"]


async def test_with_adapters_the_weights_are_kept_through_sleep_and_only_adapters_are_sent(kept):
    machines = Machines(names=("engine-0",))
    machines.dead = {"engine-0"}
    keeper, _, _ = kept(machines, "colocated", lora=True)
    await steps(keeper, range(2))
    assert machines.log == [
        *("start engine-0", "wake", "export adapter 0", "load 0 from adapter", "sleep 1"),
        *("wake", "export adapter 1", "load 1 from adapter", "sleep 1"),
    ]


async def test_a_stage_that_failed_is_made_again_with_awake_engines(kept):
    machines = Machines()
    keeper, _, _ = kept(machines, "colocated")
    await steps(keeper, [0])
    machines.failures["load 1 from policy.safetensors"] = EngineError("engine 'engine-1' is gone")
    with pytest.raises(EngineError, match="is gone"):
        await keeper.serve(1, await keeper.ask(), LEARNER)
    machines.dead = {"engine-1"}
    engines = await keeper.serve(1, await keeper.ask(), LEARNER)
    assert engines.policy_version == 1
    assert machines.log[-5:] == [
        *("load 1 from policy.safetensors", "start engine-1", "wake", "export 1", "load 1 from policy.safetensors")
    ]


async def test_a_learner_that_trains_again_after_a_kill_has_the_memory_for_it(kept):
    machines = Machines()
    keeper, _, _ = kept(machines, "colocated")
    await keeper.rest()  # nothing is there yet
    assert machines.log == []
    await keeper.ask()
    await keeper.rest()
    await keeper.serve(2, await keeper.ask(), LEARNER)
    assert machines.log == ["sleep 2", "wake", "export 2", "load 2 from policy.safetensors"]


async def test_a_lost_engine_is_replaced_with_what_the_others_serve_and_joins_once_it_is_proven(kept):
    machines = Machines()
    keeper, times, work = kept(machines)
    await steps(keeper, range(2))
    joined: list[str] = []
    keeper._clients.add(client := Joiner(joined))
    machines.dead = {"engine-1"}
    keeper._lost(SimpleNamespace(name="engine-1"))
    keeper._lost(SimpleNamespace(name="engine-1"))  # another client noticed too
    await asyncio.gather(*work)
    assert len(work) == 1
    assert machines.log[-3:] == ["start engine-1", "prove engine-0", "load 1 from policy.safetensors"]
    assert set(joined) == {"engine-0", "engine-1"}
    counted = times._notes[0]
    assert (counted["engine/replaced/count"], counted["engine/lost/count"]) == (1, 1)
    assert client is not None


async def test_an_engine_lost_while_another_is_replaced_is_replaced_too(kept):
    machines = Machines()
    keeper, _, work = kept(machines)
    await steps(keeper, range(2))
    machines.dead = {"engine-1"}
    keeper._lost(SimpleNamespace(name="engine-1"))
    while "start engine-1" not in machines.log:
        await asyncio.sleep(0)
    machines.dead = {"engine-0"}
    keeper._lost(SimpleNamespace(name="engine-0"))
    await asyncio.gather(*work)
    assert len(work) == 1
    assert "start engine-0" in machines.log


async def test_nothing_joins_that_is_not_proven(kept):
    machines = Machines()
    keeper, _, work = kept(machines)
    await steps(keeper, range(2))
    joined: list[str] = []
    keeper._clients.add(client := Joiner(joined))
    machines.dead = {"engine-1"}
    machines.failures["load 1 from policy.safetensors"] = CanaryError("other weights")
    keeper._lost(SimpleNamespace(name="engine-1"))
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    assert isinstance(outcomes[0], CanaryError)
    assert joined == []
    assert client is not None


async def test_while_engines_sleep_none_is_started_in_the_background(kept):
    machines = Machines()
    keeper, _, work = kept(machines, "colocated")
    await steps(keeper, [0])
    machines.dead = {"engine-1"}
    before = list(machines.log)
    keeper._lost(SimpleNamespace(name="engine-1"))
    await asyncio.gather(*work)
    assert machines.log == before
    await keeper.serve(1, await keeper.ask(), LEARNER)
    assert "start engine-1" in machines.log


async def test_engines_that_sleep_are_not_given_weights_again_but_woken_by_whoever_serves(kept):
    machines = Machines()
    keeper, _, _ = kept(machines, "colocated")
    await steps(keeper, range(2))
    assert keeper.resting
    before = list(machines.log)
    assert await keeper.revived() is None
    assert machines.log == before
    await keeper.serve(1, await keeper.ask(), LEARNER)
    assert not keeper.resting
    assert await keeper.revived() is not None


async def test_engines_are_not_asked_while_a_call_of_somebody_who_was_cancelled_still_changes_them(kept):
    machines = Machines()
    keeper, _, _ = kept(machines)
    begun, release, ensure = threading.Event(), threading.Event(), machines.ensure

    def stuck(*arguments, **named):
        begun.set()
        assert release.wait(10)
        machines.note("the first is done")
        return ensure(*arguments, **named)

    from agentfly_lib.pipeline import engines as module

    module.ensure_engines = stuck
    asking = asyncio.ensure_future(keeper.ask())
    await asyncio.to_thread(begun.wait, 10)
    asking.cancel()
    await asyncio.wait({asking})
    module.ensure_engines = lambda *arguments, **named: machines.note("the second") or ensure(*arguments, **named)
    again = asyncio.ensure_future(keeper.ask())
    await asyncio.sleep(0.02)
    assert machines.log == []
    release.set()
    await again
    assert machines.log == ["the first is done", "the second"]


class Joiner:
    """A client, of which only this is asked."""

    def __init__(self, joined: list[str]) -> None:
        self._joined = joined

    def join(self, name: str, found: str) -> None:
        assert found == f"actor {name}"
        self._joined.append(name)
