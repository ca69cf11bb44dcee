"""Every rank has a GPU of its own, or shares one with the engine, never with another rank."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.errors import ConfigError
from agentfly_lib.training.placement import rank_gpus

ROOT = Path(__file__).parents[2]


def config(factories: ModuleType, ranks: int, *, device: str = "cuda", **inference: Any) -> RunConfig:
    return factories.run_config(learner={"ranks": ranks, "device": device}, inference=inference)


def test_with_a_gpu_for_everyone_each_rank_claims_one(factories: ModuleType) -> None:
    assert rank_gpus(load_config(ROOT / "recipes" / "gsm8k-8gpu.toml"), 8) == 1
    assert rank_gpus(config(factories, 1), 2) == 1
    assert rank_gpus(config(factories, 4, device="auto", tensor_parallel=4), 16) == 1


def test_an_engine_on_a_cpu_takes_no_gpu(factories: ModuleType) -> None:
    assert rank_gpus(factories.run_config(learner={"ranks": 2, "device": "cuda"}, inference={"device": "cpu"}), 2) == 1


def test_on_cpus_nothing_is_claimed(factories: ModuleType) -> None:
    assert rank_gpus(config(factories, 4, device="cpu"), 8) == 0
    assert rank_gpus(config(factories, 4, device="auto"), 0) == 0


def test_a_rank_that_shares_with_the_engine_claims_what_the_engine_leaves(factories: ModuleType) -> None:
    assert rank_gpus(config(factories, 1, gpu_memory_fraction=0.45), 1) == pytest.approx(0.55)
    assert rank_gpus(config(factories, 1, gpu_memory_fraction=0.85), 1) == pytest.approx(0.15)
    assert rank_gpus(config(factories, 2, gpu_memory_fraction=0.45), 2) == pytest.approx(0.55)  # two do not fit on one


@pytest.mark.parametrize(
    ("ranks", "gpus", "inference", "message"),
    [
        (4, 4, {"tensor_parallel": 4}, r"need 8 GPUs, the cluster has 4"),
        (2, 1, {}, r"need 3 GPUs, the cluster has 1"),
        (1, 0, {}, r"need 2 GPUs, the cluster has 0"),
        (2, 2, {"gpu_memory_fraction": 0.6}, r"two of the 2 ranks could share one"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_keys_to_change(
    factories: ModuleType, ranks: int, gpus: int, inference: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rank_gpus(config(factories, ranks, **inference), gpus)


CLUSTER = """
import json, logging, sys
from pathlib import Path

import ray

from agentfly_lib.configs import load_config
from agentfly_lib.inference import actor
from agentfly_lib.inference.settings import EngineSettings
from agentfly_lib.training import ranks


class Seat:
    def __init__(self, *_):
        pass

    def gpus(self):
        return ray.get_gpu_ids()


ranks.LearnerActor = actor.EngineServer = Seat
config = load_config(Path(sys.argv[1]))
ray.init(num_cpus=8, num_gpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
         object_store_memory=80 * 2**20, _temp_dir=sys.argv[2])
handles = [ranks._start(f"rank-{rank}", "n", config, "f") for rank in range(config.learner.ranks)]
settings = EngineSettings(inference=config.inference, model_path=Path("none"), context_length=1, device="cuda")
actor._create("engine-0", "n", settings)
handles.append(ray.get_actor("engine-0", namespace="n"))
print(json.dumps(ray.get([handle.gpus.remote() for handle in handles], timeout=60)))
"""


@pytest.mark.stack
@pytest.mark.slow
def test_ray_gives_the_ranks_and_the_engine_of_the_8_gpu_recipe_8_different_gpus() -> None:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        # under /tmp because the paths of Ray's sockets must be short
        done = subprocess.run(
            [sys.executable, "-c", CLUSTER, str(ROOT / "recipes" / "gsm8k-8gpu.toml"), folder],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    *ranks, engine = json.loads(done.stdout.splitlines()[-1])
    assert [len(gpus) for gpus in (*ranks, engine)] == [1, 1, 1, 1, 4]
    assert {gpu for gpus in (*ranks, engine) for gpu in gpus} == set(range(8))
