"""What DeepSpeed costs on a small model: an update by ZeRO 1 and 2 against the same update by plain torch.

The small demo model, 64 trajectories of about 90 tokens, two optimizer updates a step, float32, one thread. All three
go through the learner's own code (packing, losses, clipping, the guarded optimizer); what differs is the engine behind
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch

from agentfly_lib.configs import RunConfig, TinyModelConfig
from agentfly_lib.models.tiny import ensure_tiny
from agentfly_lib.training.engine import GuardedAdamW, TrainingEngine, join_process_group
from agentfly_lib.training.packing import plan_step
from agentfly_lib.training.policy import PolicyModule, load_policy
from agentfly_lib.training.samples import build_samples
from agentfly_lib.training.update import StepUpdate
from agentfly_lib.types import TrajectoryGroup
from benchmarks.report import Finding, show
from benchmarks.scored_rollouts import scored_groups
from benchmarks.timing import interleaved

__all__ = ["main"]

GROUPS, CHAINS = 8, 8


class PlainEngine:
    """What `TrainingEngine` offers to an update, by torch alone."""

    def __init__(self, policy: PolicyModule, config: RunConfig) -> None:
        self.device = torch.device("cpu")
        self.policy, self._limit = policy, config.optim.max_grad_norm
        self.optimizer = GuardedAdamW(
            policy.parameters(),
            lr=config.optim.lr,
            betas=config.optim.betas,
            eps=config.optim.eps,
            weight_decay=config.optim.weight_decay,
            fused=True,
        )

    def begin(self, *, last: bool) -> None:
        del last

    def forward(self, *arguments: Any) -> Any:
        return self.policy(*arguments)

    def measure(self, *arguments: Any) -> Any:
        with torch.no_grad():
            return self.policy(*arguments)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        del last
        loss.backward()

    def step(self, rate: float, *, veto: bool) -> tuple[bool, float]:
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self._limit)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.arm(veto=veto)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return not self.optimizer.skipped, float(norm)


def main() -> bool:
    """Runs it; True if the bars are met."""
    torch.set_num_threads(1)
    join_process_group(rank=0, world=1, address="127.0.0.1", port=0, device=torch.device("cpu"))
    path = ensure_tiny(TinyModelConfig()).path
    vocabulary = int(load_policy(path, torch.float32).config.vocab_size)
    groups = scored_groups(GROUPS, CHAINS, shortest=60, longest=120, vocabulary=vocabulary)

    def contestant(zero_stage: int | None) -> Callable[[], Any]:
        config = _config(zero_stage or 0)
        policy = PolicyModule(load_policy(path, torch.float32), logit_chunk_tokens=config.learner.logit_chunk_tokens)
        engine: Any = (
            PlainEngine(policy, config)
            if zero_stage is None
            else TrainingEngine(policy, learner=config.learner, optim=config.optim, device=torch.device("cpu"))
        )
        return lambda: _update(engine, config, groups)

    timed = interleaved({name: contestant(stage) for name, stage in {"torch": None, "1": 1, "2": 2}.items()}, turns=5)
    plain = timed["torch"]
    findings = [
        Finding(
            what=f"ZeRO {stage} / plain torch, CPU (best)",
            value=timed[stage].best_cpu / plain.best_cpu,
            unit="ratio",
            bar=1.3,
        )
        for stage in ("1", "2")
    ]
    findings += [
        Finding(
            what=f"ZeRO {stage} / plain torch, CPU (median)",
            value=timed[stage].median_cpu / plain.median_cpu,
            unit="ratio",
        )
        for stage in ("1", "2")
    ]
    findings.append(Finding(what="an update by plain torch, CPU", value=plain.best_cpu, unit="s"))
    return show("zero_overhead", findings, notes="five in turn, after a warm-up; OMP_NUM_THREADS=1")


def _config(zero_stage: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "zero-overhead"},
            "model": {"type": "tiny"},
            "data": {"type": "arithmetic"},
            "rollout": {"problems_per_step": GROUPS, "chains": CHAINS},
            "optim": {"lr": 1e-5, "minibatches": 2},
            "learner": {"device": "cpu", "zero_stage": zero_stage, "microbatch_tokens": 2048},
        }
    )


def _update(engine: Any, config: RunConfig, groups: list[TrajectoryGroup]) -> SimpleNamespace:
    built = build_samples(groups, config.algorithm)
    plan = plan_step(built.samples, minibatches=2, world=1, microbatch_tokens=config.learner.microbatch_tokens)
    work = StepUpdate(engine=engine, reference=None, config=config, rank=0, world=1, nonfinite_in_row=0)
    return SimpleNamespace(result=work.run(built, plan, step=0))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
