"""Weights without a file: both sides meet once, send and receive at the same time, and meet again when one is new."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from agentfly_lib.refs import EngineRef
from agentfly_lib.types import Canary

pytestmark = pytest.mark.stack

ENGINES = EngineRef(names=("engine-0", "engine-1"), namespace="n", policy_version=0)
CANARY = Canary(token_ids=(1, 2), logprobs=(-1.0,))
HANDLES = [[("gpu-a", ("a0",)), ("gpu-a", ("a1",))], [("gpu-b", ("b0",)), ("gpu-b", ("b1",))]]


class Sides:
    """Two engines of two GPUs each, and two ranks."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.engine_pids = [10, 11]
        self.received: dict[str, object] = {}
        self.sending = threading.Event()
        self.ended = threading.Event()

    def engine_status(self, ref):
        return [SimpleNamespace(pid=pid) for pid in self.engine_pids]

    def open_transfer(self, ref, infos, *, seconds):
        self.log.append(("meet", *infos))

    def load_weights(self, ref, source, *, version, canary, seconds):
        self.received = dict(source.update_info)
        if "ipc_handles" not in self.received:
            assert self.sending.wait(30), "the learner must send while engines receive"
        self.log.append(("load", version))
        mean = float(ref.names == ("engine-1",))
        return ref.model_copy(update={"policy_version": version}), update_of(version, mean)

    def close(self):
        self.log.append(("learner ends",))

    def stop_engines(self, ref):
        self.log.append(("engines end", *ref.names))
        self.ended.set()

    async def status(self):
        return [SimpleNamespace(pid=20), SimpleNamespace(pid=21)]

    async def meeting_point(self):
        return "127.0.0.1", 5000

    async def send(self, version, part, *arguments):
        from agentfly_lib.inference.transfer import TensorMeta

        self.log.append((part, *arguments))
        if part == "broadcast":
            self.sending.set()
        if part == "describe":
            return [[TensorMeta("w", "bfloat16", (2, 3)), TensorMeta("b", "float32", (3,))]] * 2
        return HANDLES if part == "share" else [None, None]


def update_of(version, mean):
    from agentfly_lib.inference.canary import CanaryReport
    from agentfly_lib.inference.weight_update import WeightUpdate

    report = CanaryReport(mean_difference=mean, max_difference=mean, mean_difference_before=1.0)
    return WeightUpdate(version=version, canary=report)


@pytest.fixture
def sides(monkeypatch) -> Sides:
    pytest.importorskip("ray")
    from agentfly_lib.pipeline import transfer

    sides = Sides()
    for name in ("engine_status", "open_transfer", "load_weights", "stop_engines"):
        monkeypatch.setattr(transfer, name, getattr(sides, name))
    return sides


async def send(transfer, sides, version):
    return await asyncio.wait_for(transfer.send(ENGINES, sides, version=version, canary=CANARY), 60)


async def test_nccl_meets_once_and_again_with_a_replaced_engine(sides):
    from agentfly_lib.pipeline.transfer import GpuTransfer

    transfer = GpuTransfer("nccl", tensor_parallel=2, seconds=60.0)
    engines, worst = await send(transfer, sides, 1)
    assert engines == ENGINES.model_copy(update={"policy_version": 1})
    assert worst.canary.mean_difference == 1.0, "of the engine that came out furthest"
    place = {"master_address": "127.0.0.1", "master_port": 5000, "world_size": 5}
    assert [("meet", place | {"rank_offset": first}) in sides.log for first in (1, 3)] == [True, True]
    assert ("open", "127.0.0.1", 5000, 5) in sides.log
    assert sides.received == {"names": ["w", "b"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], [3]]}

    sides.log.clear()
    await send(transfer, sides, 2)
    assert sides.log[0] == ("describe",)
    assert {"broadcast", "load"} <= {str(entry[0]) for entry in sides.log}  # type: ignore[index]
    sides.engine_pids = [10, 99]
    sides.log.clear()
    await send(transfer, sides, 3)
    assert [entry for entry in sides.log if entry[0] == "open"]  # type: ignore[index]


async def test_ipc_tells_each_gpu_where_its_copy_is_and_lets_go_afterwards(sides):
    from agentfly_lib.pipeline.transfer import GpuTransfer

    await send(GpuTransfer("ipc", tensor_parallel=2, seconds=60.0), sides, 1)
    assert sides.received["ipc_handles"] == [{"gpu-a": ("a0",), "gpu-b": ("b0",)}, {"gpu-a": ("a1",), "gpu-b": ("b1",)}]
    assert sides.log == [("meet", {}), ("meet", {}), ("describe",), ("share",), ("load", 1), ("release",)]


BOTH_END = [("learner ends",), ("engines end", "engine-0", "engine-1")]


async def test_when_one_engine_dies_in_a_broadcast_both_sides_end_at_once_although_the_other_is_stuck(
    sides, monkeypatch
):
    from agentfly_lib.errors import EngineError
    from agentfly_lib.pipeline import transfer
    from agentfly_lib.ray_calls import abandoned_calls_end

    def load(ref, source, **_):
        if ref.names == ("engine-1",):
            raise EngineError("engine 'engine-1' is gone")
        assert sides.ended.wait(30), "inside of NCCL, until its process is ended"

    monkeypatch.setattr(transfer, "load_weights", load)
    subject = transfer.GpuTransfer("nccl", tensor_parallel=2, seconds=60.0)
    with pytest.raises(ExceptionGroup) as caught:
        await send(subject, sides, 1)
    assert caught.group_contains(EngineError, match="is gone")
    assert sides.log[-2:] == BOTH_END
    assert await abandoned_calls_end(10)
    monkeypatch.setattr(transfer, "load_weights", sides.load_weights)
    sides.log.clear()
    await send(subject, sides, 1)
    assert ("open", "127.0.0.1", 5000, 5) in sides.log, "all meet again"


@pytest.mark.parametrize("part", ["open", "broadcast"])
async def test_when_a_rank_dies_the_engines_that_wait_for_it_end_too(sides, monkeypatch, part):
    from agentfly_lib.errors import LearnerError
    from agentfly_lib.pipeline import transfer

    async def send_part(version, which, *arguments):
        if which == part:
            raise LearnerError("the learner's rank died")
        return await Sides.send(sides, version, which, *arguments)

    def stuck(*_, **__):
        assert sides.ended.wait(30)

    monkeypatch.setattr(sides, "send", send_part)
    monkeypatch.setattr(transfer, "open_transfer" if part == "open" else "load_weights", stuck)
    with pytest.raises(ExceptionGroup) as caught:
        await send(transfer.GpuTransfer("nccl", tensor_parallel=2, seconds=60.0), sides, 1)
    assert caught.group_contains(LearnerError, match="died")
    assert sides.log[-2:] == BOTH_END


async def test_ipc_lets_go_when_an_engine_fails_too(sides, monkeypatch):
    from agentfly_lib.errors import EngineError
    from agentfly_lib.pipeline import transfer

    def fail(*arguments, **named):
        raise EngineError("out of memory")

    monkeypatch.setattr(transfer, "load_weights", fail)
    with pytest.raises(EngineError):
        await send(transfer.GpuTransfer("ipc", tensor_parallel=2, seconds=60.0), sides, 1)
    assert sides.log[-1] == ("release",)
