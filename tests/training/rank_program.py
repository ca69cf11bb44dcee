"""Learner ranks as processes of their own (see `test_ranks_agree.py`).

Everything is imported once, what DeepSpeed would import at first use too: of a rank's seconds, imports are nearly all.
Each line on standard input is a JSON list of spec files, one per rank: a process is forked
for each, and their exit statuses are answered as a line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import factories
import torch

from agentfly_lib.configs import RunConfig
from agentfly_lib.refs import CheckpointRef, ModelRef
from agentfly_lib.training.learner import LearnerRank

IMPORTED_LATE = (
    "deepspeed.checkpoint.ds_to_universal",
    "deepspeed.runtime.sequence_parallel.ulysses_sp",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "peft",
    "torch._inductor.compile_fx",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2_vl.modeling_qwen2_vl",
)


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
    for step, poison in zip(spec["steps"], spec["poison"] or [None] * len(spec["steps"]), strict=True):
        if spec["shapes"]:
            groups = factories.vision_step_groups(step, Path(spec["model"]), shapes=spec["shapes"])
        else:
            groups = factories.step_groups(step, **spec["groups"])
        with poisoned(learner, poison if spec["rank"] == spec["poisoned_rank"] else None):
            reports.append(learner.update_from(groups, step).model_dump(mode="json"))
        if spec["save_after"] == step:
            ref = factories.saved(learner, Path(spec["save_to"]))
            if ref is not None:
                Path(spec["save_to"] + ".json").write_text(ref.model_dump_json())
    learner.export_weights(Path(spec["weights"]), learner.policy_version)
    Path(spec["reports"]).write_text(json.dumps(reports))


@contextmanager
def poisoned(learner: LearnerRank, what: str | None) -> Iterator[None]:
    """Within the block the loss of this rank is not finite, or (with a finite loss) its gradient of one parameter."""
    forward = learner.engine.forward

    def broken(*arguments: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logprobs, *others = forward(*arguments)
        return (logprobs * torch.nan, *others)  # type: ignore[return-value]

    match what:
        case "gradient":
            weight = learner.engine.policy.model.model.norm.weight
            hook = weight.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
            yield
            hook.remove()
        case "loss":
            learner.engine.forward = broken  # type: ignore[method-assign]
            yield
            learner.engine.forward = forward  # type: ignore[method-assign]
        case _:
            yield


def fork(spec_path: str) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        log = os.open(Path(spec_path).with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        main(spec_path)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    for line in sys.stdin:
        children = [fork(path) for path in json.loads(line)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(statuses), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    serve()
