"""Runs in the peer's own environment: TRL's GRPO trainer generates with tools; prints seconds as one line of JSON.

python trl_rollout.py MODEL PROBLEMS CHAINS CALLS DELAYS.json
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)
model_path, problems, chains, calls = sys.argv[1], *map(int, sys.argv[2:5])
delays = iter(json.loads(Path(sys.argv[5]).read_text()))


def wait(kind: int) -> str:
    """Waits.

    Args:
        kind: Of waiting.
    """
    time.sleep(next(delays))
    return "done"


def reward(completions: list, **_: object) -> list[float]:
    return [0.0] * len(completions)


prompts = [[{"role": "user", "content": f"Task {number}"}] for number in range(problems)]
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(model_path),
    reward_funcs=reward,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=problems * chains,
        num_generations=chains,
        max_completion_length=2048,
        max_tool_calling_iterations=calls,
        report_to=[],
        use_cpu=True,
        bf16=False,
    ),
    tools=[wait],
)
trainer.model.train()
# What `_generate_and_score_completions` does before it generates.
trainer._sync_tool_dicts = [{"wait": wait}] * (problems * chains)
trainer._async_tool_dicts = [{}] * (problems * chains)


def cpu() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


# A warm-up; its tools answer at once.
measured, delays = delays, iter([0.0] * (chains * calls))
trainer._generate(prompts[:1] * chains)
delays = measured

began, used = time.perf_counter(), cpu()
_, completion_ids, mask, *_ = trainer._generate([prompt for prompt in prompts for _ in range(chains)])
print(
    json.dumps(
        {
            "wall": time.perf_counter() - began,
            "cpu": cpu() - used,
            "sampled": sum(map(sum, mask)),
            "waited": problems * chains * calls - len(list(delays)),
        }
    )
)
