"""An engine's arguments follow from the config; asking for them loads nothing heavy."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from agentfly_lib.configs import InferenceConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference.settings import EngineSettings, engine_arguments, engine_environment, resolve_device


@pytest.fixture
def settings(tmp_path) -> EngineSettings:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    return EngineSettings(inference=InferenceConfig(), model_path=tmp_path, context_length=512, device="cpu")


@pytest.mark.parametrize(
    ("asked", "gpus", "device"), [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda")]
)
def test_auto_takes_a_gpu_if_there_is_one(asked, gpus, device):
    assert resolve_device(asked, gpus) == device


def test_a_gpu_that_is_not_there_is_an_error_that_names_the_key():
    with pytest.raises(ConfigError, match=r"inference\.device"):
        resolve_device("cuda", 0)


def test_on_a_cpu_prefills_are_whole_and_threads_are_those_of_the_config(settings):
    arguments = engine_arguments(settings)
    assert arguments["enable_chunked_prefill"] is False
    assert arguments["max_num_batched_tokens"] >= settings.context_length
    assert arguments["kv_cache_memory_bytes"] == 64 * 2**20
    many = replace(settings, inference=InferenceConfig(threads=3))
    assert engine_environment(many)["OMP_NUM_THREADS"] == "3"


def test_on_a_gpu_the_memory_share_and_the_ranks_are_those_of_the_config(settings):
    inference = InferenceConfig(tensor_parallel=2, gpu_memory_fraction=0.3)
    arguments = engine_arguments(replace(settings, device="cuda", inference=inference))
    assert arguments["gpu_memory_utilization"] == 0.3
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["distributed_executor_backend"] == "mp"
    assert "kv_cache_memory_bytes" not in arguments


def test_log_probs_are_those_of_the_sampled_distribution_and_the_models_defaults_do_not_leak_in(settings):
    arguments = engine_arguments(settings)
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["generation_config"] == "vllm"


def test_the_digest_ignores_the_version_but_neither_the_model_nor_its_shape(settings, tmp_path):
    assert replace(settings, policy_version=7).digest == settings.digest
    assert replace(settings, model_fingerprint="another").digest != settings.digest
    assert replace(settings, context_length=256).digest != settings.digest
    before = settings.digest
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 16}))
    assert settings.digest != before


@pytest.mark.parametrize("module", ["inference", "inference.vllm", "inference.actor", "inference.settings", "cluster"])
def test_importing_loads_neither_vllm_nor_ray_nor_torch(module):
    script = (
        f"import sys, agentfly_lib.{module}\n"
        "sys.exit(' '.join({'vllm', 'ray', 'torch', 'deepspeed', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
