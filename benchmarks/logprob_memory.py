"""Log-probs over a large vocabulary: memory and processor time of the chunked head against full logits.

2,048 tokens, of which 40% are trained, hidden size 256, 151,936 ids; forward and backward, float32. The peer is the
plain way: logits of every token, log-softmax, the targets' log-probs, and a mean over those that are trained. Memory is
the process's resident peak above what it held before, read from the kernel.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from agentfly_lib.configs import LearnerConfig
from agentfly_lib.training.head import LogprobHead
from benchmarks.report import Finding, show
from benchmarks.timing import interleaved

__all__ = ["main"]

TOKENS = 2048
HIDDEN = 256
VOCABULARY = 151_936
TRAINED = 0.4


def main() -> bool:
    """Runs it; True if the bars are met."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    head = LogprobHead.of(plain)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (TOKENS,))
    trained = torch.rand(TOKENS) < TRAINED
    chunk = LearnerConfig().logit_chunk_tokens

    def full() -> torch.Tensor:
        logprobs = torch.log_softmax(plain(hidden).float(), dim=-1).gather(-1, targets[:, None]).squeeze(-1)
        return (logprobs * trained).sum() / trained.sum()

    def chunked() -> torch.Tensor:
        logprobs, _ = head(hidden[trained], targets[trained], chunk_tokens=chunk)
        return logprobs.mean()

    results = {}
    for name, work in {"full": full, "chunked": chunked}.items():
        plain.weight.grad = hidden.grad = None  # else the other's gradient would be freed inside of what is measured
        loss, memory = _peak(lambda work=work: _backward(work, plain, hidden))
        results[name] = (loss, memory, plain.weight.grad.norm().item())  # type: ignore[union-attr]
    timed = interleaved(
        {
            name: lambda work=work: _backward(work, plain, hidden)
            for name, work in {"full": full, "chunked": chunked}.items()
        }
    )
    (loss, memory, norm), (own_loss, own_memory, own_norm) = results["full"], results["chunked"]
    ratio = timed["chunked"].best_cpu / timed["full"].best_cpu
    findings = [
        Finding(what="peak memory, chunked / full logits", value=own_memory / memory, unit="ratio", bar=0.2),
        Finding(what="CPU, chunked / full logits", value=ratio, unit="ratio", bar=0.6),
        Finding(what="difference of the loss", value=abs(own_loss / loss - 1), unit="ratio", bar=1e-5),
        Finding(what="difference of the gradient's norm", value=abs(own_norm / norm - 1), unit="ratio", bar=1e-5),
        Finding(what="peak memory, full logits", value=memory, unit="MiB"),
        Finding(what="peak memory, chunked", value=own_memory, unit="MiB"),
        Finding(what="CPU, full logits", value=timed["full"].best_cpu, unit="s"),
        Finding(what="CPU, chunked", value=timed["chunked"].best_cpu, unit="s"),
    ]
    return show("logprob_memory", findings, notes=f"chunks of {chunk} tokens; best of three, in turn, after a warm-up")


def _backward(work: Callable[[], torch.Tensor], head: torch.nn.Linear, hidden: torch.Tensor) -> float:
    head.weight.grad = hidden.grad = None
    loss = work()
    loss.backward()
    return loss.item()


def _peak(work: Callable[[], float]) -> tuple[float, float]:
    """What it returns, and the MiB by which the resident memory rose above where it was before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    before = _status("VmRSS")
    result = work()
    return result, _status("VmHWM") - before


def _status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
