"""Ranks meet on the address that they are given, and nobody else can see where."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("deepspeed")

RANK = """
import json, os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
import psutil, torch
import torch.distributed as dist
from agentfly_lib.training.engine import join_process_group

rank, world, port = map(int, sys.argv[1:4])
join_process_group(rank=rank, world=world, address=sys.argv[4], port=port, device=torch.device("cpu"))
total = torch.tensor(float(rank + 1))
dist.all_reduce(total)
listening = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
dist.barrier()
print(json.dumps([total.item(), listening, os.environ.get("NCCL_SOCKET_IFNAME")]))
"""


@pytest.mark.parametrize("world", [1, 2])
def test_nothing_listens_beyond_the_loopback_interface(world: int, free_port: Callable[[], int]) -> None:
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(world), str(port), "127.0.0.1"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        answers = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for total, addresses, interface in answers:
        assert interface == "lo"
        assert total == sum(range(1, world + 1))
        assert {address.removeprefix("::ffff:") for address in addresses} <= {"127.0.0.1", "::1"}


def test_one_rank_needs_no_port_and_may_send_weights_to_other_machines(free_port: Callable[[], int]) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(
            [sys.executable, "-c", RANK, "0", "1", str(port), "192.0.2.1"],
            env={name: value for name, value in os.environ.items() if name != "NCCL_SOCKET_IFNAME"},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    total, addresses, interface = json.loads(done.stdout.splitlines()[-1])
    assert (total, interface) == (1.0, None)
    assert {address.removeprefix("::ffff:") for address in addresses} <= {"127.0.0.1", "::1"}
