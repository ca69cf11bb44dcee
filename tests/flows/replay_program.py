"""Trains on a run's stored shards without a break, in one process: `replay_program.py RUN WEIGHTS`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


def main(run: Path, weights: Path) -> None:
    from agentfly_lib.configs import load_config
    from agentfly_lib.refs import ModelRef
    from agentfly_lib.store.layout import RunDirectory
    from agentfly_lib.training.learner import LearnerRank

    directory = RunDirectory(run)
    config = load_config(directory.config_file)
    model = ModelRef.model_validate_json(directory.model_file.read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rank = LearnerRank()
    rank.setup(rank=0, world=1, address="127.0.0.1", port=port, config=config, model=model)
    for step in directory.steps():
        rank.update(directory.step(step).path, step)
    rank.export_weights(weights, config.run.steps)
    rank.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
