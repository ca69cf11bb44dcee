"""Every rank has a GPU of its own, or shares one with an engine, never with another rank; Ray does as the plan says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference.placement import place

ROOT = Path(__file__).parents[2]


def config(factories: ModuleType, ranks: int, *, device: str = "cuda", **inference: Any) -> RunConfig:
    return factories.run_config(learner={"ranks": ranks, "device": device}, inference=inference)


def test_with_a_gpu_for_everyone_each_rank_claims_one(factories: ModuleType) -> None:
    assert place(load_config(ROOT / "recipes" / "gsm8k-8gpu.toml"), 8).rank_gpus == 1
    assert place(config(factories, 1), 2).rank_gpus == 1
    assert place(config(factories, 4, device="auto", tensor_parallel=4), 16).rank_gpus == 1


def test_on_cpus_nothing_is_claimed(factories: ModuleType) -> None:
    assert place(config(factories, 4, device="cpu"), 8).rank_gpus == 0
    assert place(config(factories, 4, device="auto"), 0).rank_gpus == 0


def test_two_ranks_never_fit_on_one_gpu_that_is_shared(factories: ModuleType) -> None:
    share = place(config(factories, 2), 2).rank_gpus
    assert 0 < share < 1
    with pytest.raises(ConfigError, match="need 3 GPUs"):
        place(config(factories, 2), 1)


CLUSTER = """
import json, logging, os, sys
from pathlib import Path

import ray

from agentfly_lib.cluster import end_actors, gpu_count
from agentfly_lib.configs import load_config
from agentfly_lib.inference import actor
from agentfly_lib.inference.placement import place
from agentfly_lib.inference.settings import EngineSettings
from agentfly_lib.training import ranks


class Seat:
    def __init__(self, *_):
        pass

    def gpus(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]


ranks.LearnerActor = actor.EngineServer = Seat


def seats(config):
    handles = [ranks._start(rank, f"rank-{rank}", "n", config, "f") for rank in range(config.learner.ranks)]
    settings = EngineSettings(inference=config.inference, model_path=Path("none"), context_length=1, device="cuda")
    placement = place(config, gpu_count())
    for number in range(config.inference.replicas):
        actor._create(f"engine-{number}", "n", settings, actor._seat(placement, number, namespace="n"))
        handles.append(ray.get_actor(f"engine-{number}", namespace="n"))
    seen = ray.get([handle.gpus.remote() for handle in handles], timeout=60)
    end_actors("n")
    return seen


ray.init(num_cpus=12, num_gpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
         object_store_memory=80 * 2**20, _temp_dir=sys.argv[2], namespace="n")
print(json.dumps([seats(load_config(Path(sys.argv[1]), changes.split())) for changes in sys.argv[3:]]))
"""


def _without_gpu_list() -> dict[str, str]:
    """Variables but for the list of GPUs, which an engine on the CPU leaves empty in its process."""
    return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}


@pytest.mark.stack
@pytest.mark.slow
def test_ray_gives_every_part_the_gpus_of_the_plan() -> None:
    pytest.importorskip("ray")
    base = "learner.ranks=4 inference.replicas=2 inference.tensor_parallel=2 inference.placement="
    narrow = "learner.ranks=2 inference.replicas=4 inference.tensor_parallel=1 inference.placement=colocated"
    changes = [base + "split", base + "colocated", narrow]
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        # under /tmp because the paths of Ray's sockets must be short
        done = subprocess.run(
            [sys.executable, "-c", CLUSTER, str(ROOT / "recipes" / "gsm8k-8gpu.toml"), folder, *changes],
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=ROOT,
            env={**_without_gpu_list(), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])  # GPUs of each rank and each engine, as their processes see them
    split, colocated, single = ([seat.split(",") for seat in seats] for seats in found)
    assert [len(seat) for seat in split] == [1, 1, 1, 1, 2, 2]
    assert sorted(gpu for seat in split for gpu in seat) == [str(gpu) for gpu in range(8)], "nobody shares"
    *ranks, first, second = colocated
    assert len({rank for (rank,) in ranks}) == 4
    assert (first, second) == ([ranks[0][0], ranks[1][0]], [ranks[2][0], ranks[3][0]]), "over the GPUs of the ranks"
    assert single[2:4] == single[:2], "the first two engines share with a rank each"
    assert len({gpu for seat in single[2:] for gpu in seat}) == 4
