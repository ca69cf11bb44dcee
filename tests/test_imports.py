"""What importing the light half of the library loads, and what it must not."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "vllm", "deepspeed", "prefect", "mlflow", "transformers")


@pytest.mark.parametrize(
    "module",
    [
        "agentfly_lib.configs",
        "agentfly_lib.types",
        "agentfly_lib.refs",
        "agentfly_lib.store",
        "agentfly_lib.data",
        "agentfly_lib.chat",
        "agentfly_lib.tools",
        "agentfly_lib.envs",
        "agentfly_lib.envs.host",
        "agentfly_lib.resources",
        "agentfly_lib.rewards",
        "agentfly_lib.agents",
        "agentfly_lib.rollout",
        "agentfly_lib.inference",
        "agentfly_lib.evaluation",
        "agentfly_lib.tracking",
        "agentfly_lib.pipeline.opening",
        "agentfly_lib.cli",
    ],
)
def test_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
