"""Weights without a file: both sides meet once, send and receive at the same time, and meet again when one is new."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from agentfly_lib.inference.canary import Canary
from agentfly_lib.refs import EngineRef

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

    def engine_status(self, ref):
        return [SimpleNamespace(pid=pid) for pid in self.engine_pids]

    def open_transfer(self, ref, infos, *, seconds):
        self.log.append(("meet", infos))

    def load_weights(self, ref, source, *, version, canary, seconds):
        self.received = dict(source.update_info)
        if "ipc_handles" not in self.received:
            assert self.sending.wait(30), "the learner must send while engines receive"
        self.log.append(("load", version))
        return ref.model_copy(update={"policy_version": version}), "update"

    def close(self):
        self.log.append(("learner ends",))

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


@pytest.fixture
def sides(monkeypatch) -> Sides:
    pytest.importorskip("ray")
    from agentfly_lib.pipeline import transfer

    sides = Sides()
    for name in ("engine_status", "open_transfer", "load_weights"):
        monkeypatch.setattr(transfer, name, getattr(sides, name))
    return sides


async def send(transfer, sides, version):
    return await asyncio.wait_for(transfer.send(ENGINES, sides, version=version, canary=CANARY), 60)


async def test_nccl_meets_once_and_again_with_a_replaced_engine(sides):
    from agentfly_lib.pipeline.transfer import GpuTransfer

    transfer = GpuTransfer("nccl", tensor_parallel=2, seconds=60.0)
    engines, _ = await send(transfer, sides, 1)
    assert engines.policy_version == 1
    place = {"master_address": "127.0.0.1", "master_port": 5000, "world_size": 5}
    assert ("meet", [place | {"rank_offset": 1}, place | {"rank_offset": 3}]) in sides.log
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
    assert sides.log == [("meet", [{}, {}]), ("describe",), ("share",), ("load", 1), ("release",)]


async def test_a_broadcast_that_nobody_receives_ends_the_learner(sides, monkeypatch):
    from agentfly_lib.errors import EngineError
    from agentfly_lib.pipeline import transfer

    def fail(*arguments, **named):
        raise EngineError("engine 'engine-1' is gone")

    monkeypatch.setattr(transfer, "load_weights", fail)
    with pytest.raises(ExceptionGroup) as caught:
        await send(transfer.GpuTransfer("nccl", tensor_parallel=2, seconds=60.0), sides, 1)
    assert caught.group_contains(EngineError, match="is gone")
    assert sides.log[-1] == ("learner ends",)


async def test_ipc_lets_go_when_an_engine_fails_too(sides, monkeypatch):
    from agentfly_lib.errors import EngineError
    from agentfly_lib.pipeline import transfer

    def fail(*arguments, **named):
        raise EngineError("out of memory")

    monkeypatch.setattr(transfer, "load_weights", fail)
    with pytest.raises(EngineError):
        await send(transfer.GpuTransfer("ipc", tensor_parallel=2, seconds=60.0), sides, 1)
    assert sides.log[-1] == ("release",)
