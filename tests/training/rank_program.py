"""One learner rank as a program of its own: `python rank_program.py SPEC.json` (see `test_ranks_agree.py`)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import factories

from agentfly_lib.configs import RunConfig
from agentfly_lib.refs import CheckpointRef, ModelRef
from agentfly_lib.training.learner import LearnerRank


def main(spec_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    learner = LearnerRank()
    learner.setup(
        rank=spec["rank"],
        world=spec["world"],
        address="127.0.0.1",
        port=spec["port"],
        config=RunConfig.model_validate(spec["config"]),
        model=ModelRef(path=Path(spec["model"]), fingerprint="tiny"),
        checkpoint=CheckpointRef.model_validate(spec["checkpoint"]) if spec["checkpoint"] else None,
    )
    reports = []
    for step in spec["steps"]:
        groups = factories.step_groups(step, **spec["groups"])
        reports.append(learner.update_from(groups, step).model_dump(mode="json"))
        if spec["save_after"] == step:
            ref = learner.save_checkpoint(Path(spec["save_to"]))
            if ref is not None:
                Path(spec["save_to"] + ".json").write_text(ref.model_dump_json())
    learner.export_weights(Path(spec["weights"]), learner.policy_version)
    Path(spec["reports"]).write_text(json.dumps(reports))


if __name__ == "__main__":
    main(sys.argv[1])
