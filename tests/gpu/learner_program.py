"""A learner in a process of its own, on made-up rollouts: `learner_program.py FOLDER KEY=VALUE...`.

Prints a line of JSON: the last update's gradient norm, updates that were skipped, and the largest difference between
the learner's log-probs of fixed tokens and those that transformers computes from the exported weights, in bfloat16.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))

import factories


def sections(options: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"learner": {"device": "auto", "dtype": "bfloat16", "microbatch_tokens": 256}}
    for option in options:
        key, _, text = option.partition("=")
        place = values
        *path, last = key.split(".")
        for name in path:
            place = place.setdefault(name, {})
        place[last] = json.loads(text) if text in ("true", "false") or text.isdigit() else text
    return values


def main(folder: Path, options: list[str]) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from agentfly_lib.refs import ModelRef
    from agentfly_lib.training.learner import LearnerRank

    model = ModelRef(path=factories.write_tiny_model(folder / "model"), fingerprint="tiny")
    learner = LearnerRank()
    config = factories.run_config(**sections(options))
    learner.setup(rank=0, world=1, address="127.0.0.1", port=0, config=config, model=model)
    for step in range(2):
        report = learner.update_from(factories.step_groups(step), step)
    canary = learner.export_weights(folder / "weights.safetensors", 2)
    ids = learner.canary_token_ids
    served = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.bfloat16).to(learner.device)
    served.load_state_dict(load_file(folder / "weights.safetensors"), strict=False)
    with torch.no_grad():
        logits = served(torch.tensor([ids], device=learner.device)).logits[0].float()
    logprobs = torch.log_softmax(logits, -1)
    expected = [float(logprobs[place, ids[place + 1]]) for place in range(len(ids) - 1)]
    factories.saved(learner, folder / "000002")
    learner.close()
    answer = {
        "grad_norm": report.metrics["train/grad_norm/mean"],
        "skipped": report.metrics["train/skipped_updates/count"],
        "difference": max(abs(one - other) for one, other in zip(canary, expected, strict=True)),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
