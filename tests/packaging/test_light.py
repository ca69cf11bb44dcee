"""What runs where only the light half is installed, without engine and learner: preparing, scoring, reading runs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("deepspeed", "peft", "ray", "torch", "vllm"):
            raise ModuleNotFoundError(f"{name} is not installed", name=name)

sys.meta_path.insert(0, Missing())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""
MODULES = (
    "flows.prepare",
    "flows.score",
    "agentfly_lib.agents",
    "agentfly_lib.rollout",
    "agentfly_lib.viewer.show",
    "agentfly_lib.viewer.compare",
    "agentfly_lib.viewer.web.serve",
    "agentfly_lib.planning",
    "agentfly_lib.preflight",
)


def test_it_imports_without_engine_and_learner():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *MODULES], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
