"""A learner whose files may not grow beyond 20 kB, as on a full disk: `full_disk_program.py MODEL FOLDER`."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import factories

from agentfly_lib.errors import AgentFlyError
from agentfly_lib.refs import ModelRef
from agentfly_lib.training.learner import LearnerRank


def attempt(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except AgentFlyError as error:
        return [type(error).__name__, str(error)]
    return ["none", ""]


def main(model: Path, folder: Path) -> None:
    learner = LearnerRank()
    config = factories.run_config()
    model_ref = ModelRef(path=model, fingerprint="tiny")
    learner.setup(rank=0, world=1, address="127.0.0.1", port=0, config=config, model=model_ref)
    learner.update_from(factories.step_groups(0), 0)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    answers: dict[str, Any] = {
        "export": attempt(lambda: learner.export_weights(folder / "policy.safetensors", 1)),
        "checkpoint": attempt(lambda: factories.saved(learner, folder / "000001")),
        "left": sorted(item.name for item in folder.iterdir()),
    }
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    answers["export later"] = attempt(lambda: learner.export_weights(folder / "policy.safetensors", 1))
    answers["checkpoint later"] = attempt(lambda: factories.saved(learner, folder / "000001"))
    answers["left later"] = sorted(item.name for item in folder.iterdir())
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
