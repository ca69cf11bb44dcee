"""Packed rows against padding: useful tokens a second, and whether both compute the same.

64 sequences, mean 411 and at most 1,439 tokens, a third of them trained; a decoder of 2 layers of width 64 with a
vocabulary of 2,048, forward and backward, float32, one thread. The peer pads every sequence to the longest of all, as
trainers do that take a batch as a rectangle: eight rows at a time, the model's own attention with a mask, logits of
every place. Both take the mean negative log-prob of the trained tokens.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentfly_lib.configs import LearnerConfig
from agentfly_lib.training.attention import register_attention
from agentfly_lib.training.packing import plan_step, to_batch
from agentfly_lib.training.policy import PolicyInputs, PolicyModule, attention_tokens
from agentfly_lib.types import TrainingSample
from benchmarks.report import Finding, show
from benchmarks.timing import interleaved

__all__ = ["main"]

SEQUENCES = 64
MEAN, LONGEST = 411, 1439
VOCABULARY = 2048
ROWS = 8


def main() -> bool:
    """Runs it; True if the bars are met."""
    torch.set_num_threads(1)
    samples = _samples()
    packed, padded = _model(register_attention()), _model("sdpa")
    policy = PolicyModule(packed, logit_chunk_tokens=LearnerConfig().logit_chunk_tokens)
    tokens, trained = sum(map(len, samples)), sum(sample.num_loss_tokens for sample in samples)
    plan = plan_step(
        samples,
        minibatches=1,
        world=1,
        microbatch_tokens=LearnerConfig().microbatch_tokens,
        attention_tokens=attention_tokens(packed),
    )
    rows = [
        PolicyInputs(to_batch([samples[index] for index in row]), torch.device("cpu"))
        for row in plan.minibatches[0].ranks[0]
    ]

    def ours() -> tuple[float, float]:
        policy.zero_grad()
        losses = [-policy(row)[0].sum() / trained for row in rows]
        for loss in losses:
            loss.backward()
        return sum(loss.item() for loss in losses), _norm(packed)

    rectangles = [_rectangle(samples[first : first + ROWS]) for first in range(0, SEQUENCES, ROWS)]

    def theirs() -> tuple[float, float]:
        padded.zero_grad()
        return sum(_padded_loss(padded, *rectangle, trained) for rectangle in rectangles), _norm(padded)

    (loss, norm), (own_loss, own_norm) = theirs(), ours()
    timed = interleaved({"packed": ours, "padded": theirs})
    slots = sum(row.token_ids.shape[1] for row in rows)
    attended = sum(row.documents.slots for row in rows)
    findings = [
        Finding(what="waste of rows", value=1 - tokens / slots, unit="share", bar=0.05),
        Finding(what="waste of attention's blocks", value=1 - tokens / attended, unit="share", bar=0.05),
        Finding(
            what="useful tokens a second, packed / padded",
            value=timed["padded"].best_cpu / timed["packed"].best_cpu,
            unit="x",
            floor=3.5,
        ),
        Finding(what="difference of the loss", value=abs(own_loss / loss - 1), unit="share", bar=1e-5),
        Finding(what="difference of the gradient's norm", value=abs(own_norm / norm - 1), unit="share", bar=1e-5),
        Finding(what="waste of padding", value=1 - tokens / (SEQUENCES * LONGEST), unit="share"),
        Finding(what="useful tokens a second of CPU, packed", value=tokens / timed["packed"].best_cpu, unit="1/s"),
        Finding(what="useful tokens a second of CPU, padded", value=tokens / timed["padded"].best_cpu, unit="1/s"),
    ]
    return show("packing", findings, notes="best of three, in turn, after a warm-up; OMP_NUM_THREADS=1")


def _rectangle(samples: list[TrainingSample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, which places hold one, and which of these are trained."""
    ids = torch.zeros(len(samples), LONGEST, dtype=torch.long)
    present, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        ids[row, : len(sample)] = torch.from_numpy(sample.token_ids.astype(np.int64))
        present[row, : len(sample)] = 1
        mask[row, : len(sample)] = torch.from_numpy(sample.loss_mask.astype(np.int64))
    return ids, present, mask


def _padded_loss(
    model: Qwen2ForCausalLM, ids: torch.Tensor, present: torch.Tensor, mask: torch.Tensor, trained: int
) -> float:
    logits = model(input_ids=ids, attention_mask=present, use_cache=False).logits[:, :-1].float()
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    loss = -(logprobs * mask[:, 1:]).sum() / trained
    loss.backward()
    return loss.item()


def _norm(model: torch.nn.Module) -> float:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def _model(attention: str) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    return Qwen2ForCausalLM(config)


def _samples() -> list[TrainingSample]:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(0.0, 0.75, SEQUENCES)
    for _ in range(20):
        lengths = np.minimum(lengths * MEAN / lengths.mean(), LONGEST)
    made = []
    for number, length in enumerate(lengths.round().astype(int)):
        mask = (np.arange(length) // 20) % 3 == 1
        made.append(
            TrainingSample(
                trajectory_id=f"t{number:02d}",
                token_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
                loss_mask=mask,
                rollout_logprobs=np.zeros(length, np.float32),
                advantages=np.ones(length, np.float32),
            )
        )
    return made


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
