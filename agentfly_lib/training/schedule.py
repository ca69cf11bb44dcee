"""The learning rate as a pure function of step and minibatch, so that a resume needs no scheduler state."""

from __future__ import annotations

from agentfly_lib.configs import OptimConfig

__all__ = ["learning_rate"]


def learning_rate(optim: OptimConfig, *, step: int, minibatch: int, total_steps: int) -> float:
    """Linear warm-up from 0 over `warmup_steps`, times linear decay to `final_lr_fraction` at the run's last update.

    The first update of a warm-up has a rate above 0, the last one the full rate.
    """
    update = step * optim.minibatches + minibatch
    warm_updates = optim.warmup_steps * optim.minibatches
    warmth = min(1.0, (update + 1) / warm_updates) if warm_updates else 1.0
    last = max(1, total_steps * optim.minibatches - 1)
    decay = 1.0 - (1.0 - optim.final_lr_fraction) * min(1.0, update / last)
    return optim.lr * warmth * decay
