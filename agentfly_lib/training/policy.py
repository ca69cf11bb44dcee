"""The policy as the learner sees it: log-probs of chosen tokens, and nothing of the vocabulary elsewhere.

The full [tokens, vocabulary] logits of a packed row never exist: only the positions that predict a trained token go
through the output head, and those in chunks (`head.py`). An architecture whose logits are more than a linear layer's
output has its trained tokens' logits at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from agentfly_lib.chat.image_reader import reads
from agentfly_lib.errors import ConfigError, LearnerError, ModelError
from agentfly_lib.training.attention import Documents, register_attention
from agentfly_lib.training.head import NO_SHARE, LogprobHead
from agentfly_lib.training.quantize import as_loaded, quantization
from agentfly_lib.training.sequence import SequenceGroup
from agentfly_lib.training.vision import Eyes
from agentfly_lib.types import Batch

__all__ = ["PolicyInputs", "PolicyModule", "ValueHead", "attention_tokens", "load_policy", "token_logprobs"]

HEAD_SCALINGS = (
    "final_logit_softcapping",
    "lm_head_multiplier",
    "logit_scale",
    "logits_scaling",
    "output_multiplier",
    "output_multiplier_scale",
)
"""Config entries of architectures whose logits are more than the head's output."""
KEPT_APART = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that know where a document of a packed row begins: all that they take of others is attention."""


class PolicyInputs:
    """One packed row on its device, and the tokens whose log-probs are wanted."""

    def __init__(
        self,
        batch: Batch,
        device: torch.device,
        eyes: Eyes | None = None,
        *,
        whole_vocabulary: bool = False,
        sequence_parallel: int = 1,
    ) -> None:
        """eyes: of a model that sees. whole_vocabulary: log-probs in which no token is banned. sequence_parallel: ranks
        that share the row, which is padded to a multiple of them."""
        self.num_loss_tokens = batch.num_loss_tokens
        self.whole_vocabulary = whole_vocabulary
        position_ids, self.pixels = torch.from_numpy(batch.position_ids).unsqueeze(0), {}
        if eyes is None and batch.images:
            raise LearnerError(
                "the rollouts have pictures, but the trained model is not a vision model, or not of a supported kind"
            )
        if eyes is not None:
            seen = eyes.see(batch)
            batch, position_ids = seen.batch, torch.from_numpy(seen.position_ids).unsqueeze(1)
            self.pixels = seen.pixels
            """What the model takes of the row's pictures; on the CPU until it does, for a step's are many."""
        selected = torch.from_numpy(batch.loss_mask).nonzero().squeeze(1)
        token_ids = torch.from_numpy(batch.token_ids)
        self.targets = token_ids[selected].to(device)  # [N]
        """Trained tokens, in the order of the row."""
        self.sources = (selected - 1).to(device)  # [N]
        """Positions that predict them."""
        self.advantages = torch.from_numpy(batch.advantages)[selected].to(device)  # [N]
        self.recorded = torch.from_numpy(batch.rollout_logprobs)[selected].to(device)  # [N]
        if padding := -len(token_ids) % sequence_parallel:
            token_ids = torch.nn.functional.pad(token_ids, (0, padding))
            position_ids = torch.nn.functional.pad(position_ids, (0, padding))
        self.token_ids = token_ids.unsqueeze(0).to(device)  # [1, T]
        self.position_ids = position_ids.to(device)  # [1, T], or [3, 1, T] of a model that sees
        self.documents = Documents.of(batch.boundaries, len(token_ids), device)
        if not self.num_loss_tokens:
            # Something must go through the head, so that every rank takes part in every collective of the backward
            # pass; the loss multiplies it by zero.
            self.sources = torch.zeros(1, dtype=torch.long, device=device)
            self.targets = self.token_ids[0, :1]


class PolicyModule(torch.nn.Module):
    """A causal language model whose forward returns log-probs, entropies and, if it has a head for them, values."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        logit_chunk_tokens: int,
        entropy_gradient: bool = False,
        value_head: bool = False,
        banned: Sequence[int] = (),
        sequence: SequenceGroup | None = None,
    ) -> None:
        """banned: ids that can never be sampled, and so have no part in any distribution. sequence: the ranks that
        share each row. Raises `ConfigError` if rows of this model cannot be shared."""
        super().__init__()
        self.model = model
        self.banned: torch.Tensor | None
        self.register_buffer("banned", torch.tensor(banned, dtype=torch.long) if banned else None, persistent=False)
        self.logit_chunk_tokens = logit_chunk_tokens
        self.entropy_gradient = entropy_gradient
        self.value_head = ValueHead(model) if value_head else None
        head = model.get_output_embeddings()
        if type(head) is torch.nn.Linear and not _scales_logits(model.config):
            model.set_output_embeddings(LogprobHead.of(head))
        elif sequence is not None:
            raise ConfigError(
                "learner.sequence_parallel needs a plain linear output head, "
                f"and {type(model).__name__} has none; set it to 1"
            )
        self._sequence = sequence

    def forward(
        self, inputs: PolicyInputs, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of `inputs.targets`, under softmax(logits / T): log-probs, entropies, and values of what precedes each.

        All [N] float32, values [0] without a head for them; entropies carry a graph only if their gradient is wanted.
        """
        if self._sequence is not None:
            return self._shared_forward(self._sequence, inputs, temperature)
        row = {
            "input_ids": inputs.token_ids,
            "position_ids": inputs.position_ids,
            "documents": inputs.documents,
            "use_cache": False,
            **{name: tensor.to(inputs.token_ids.device) for name, tensor in inputs.pixels.items()},
        }
        banned = None if inputs.whole_vocabulary else self.banned
        head, targets = self.model.get_output_embeddings(), inputs.targets
        if isinstance(head, LogprobHead):
            body = self.model.base_model if inputs.pixels else self.model.get_decoder()
            hidden = body(**row).last_hidden_state[0].index_select(0, inputs.sources)
            logprobs, entropy = self._through_head(hidden, targets, temperature, banned)
            return logprobs, entropy, self._values(hidden, logprobs)
        output = self.model(**row, logits_to_keep=inputs.sources, output_hidden_states=self.value_head is not None)
        logits = output.logits[0] if banned is None else output.logits[0].float().index_fill(-1, banned, NO_SHARE)
        logprobs, entropy = token_logprobs(logits, targets, temperature, self.entropy_gradient)
        hidden = output.hidden_states[-1][0].index_select(0, inputs.sources) if self.value_head is not None else None
        return logprobs, entropy, self._values(hidden, logprobs)

    def _shared_forward(
        self, sequence: SequenceGroup, inputs: PolicyInputs, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`forward` of a row that several ranks share; collective among them."""
        tokens = inputs.token_ids.shape[1]
        mine = sequence.mine(inputs.sources, tokens)
        sources, targets = inputs.sources[mine] % (tokens // sequence.size), inputs.targets[mine]
        if not len(sources):  # something goes through the head on every rank, see `PolicyInputs`
            sources, targets = inputs.sources.new_zeros(1), inputs.targets[:1]
        output = self.model.get_decoder()(
            input_ids=sequence.stretch(inputs.token_ids),
            position_ids=sequence.stretch(inputs.position_ids),
            documents=replace(inputs.documents, sequence=sequence),
            use_cache=False,
        )
        hidden = output.last_hidden_state[0].index_select(0, sources)
        banned = None if inputs.whole_vocabulary else self.banned
        logprobs, entropy = self._through_head(hidden, targets, temperature, banned)
        values = self._values(hidden, logprobs)
        return (
            sequence.told(logprobs, mine),
            sequence.told(entropy, mine),
            sequence.told(values, mine) if len(values) else values,
        )

    def _through_head(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, banned: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head: Any = self.model.get_output_embeddings()
        return head(
            hidden,
            targets,
            temperature=temperature,
            chunk_tokens=self.logit_chunk_tokens,
            entropy_gradient=self.entropy_gradient,
            banned=banned,
        )

    def _values(self, hidden: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros(0) if self.value_head is None or hidden is None else self.value_head(hidden)


class ValueHead(torch.nn.Module):
    """What the policy may still expect, read from its last hidden states; it begins at 0 everywhere."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        width = model.config.get_text_config().hidden_size
        self.linear = torch.nn.Linear(width, 1, dtype=model.dtype)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, width] -> values [N] float32."""
        return self.linear(hidden).squeeze(-1).float()


def token_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """log softmax(logits / T) at the targets, and the entropy of that distribution (detached unless asked otherwise).

    logits [N, V] of any dtype, targets [N]; both results [N] float32.
    """
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    everything = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(everything.exp() * everything).sum(-1)
    return everything.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def attention_tokens(model: PreTrainedModel) -> float:
    """Length at which a token costs as much in causal attention as in all other layers, the output head aside."""
    shape = model.config.get_text_config()
    width = shape.num_attention_heads * (
        getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    )
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    head = model.get_output_embeddings()
    weights = sum(module.in_features * module.out_features for module in linear if module is not head)
    return weights / (shape.num_hidden_layers * width)


def _scales_logits(config: PreTrainedConfig) -> bool:
    """What a model that sees does with its logits stands in the part of its config that is about text."""
    return any(getattr(part, name, None) for part in (config, config.get_text_config()) for name in HEAD_SCALINGS)


def _without_chance(config: PreTrainedConfig) -> None:
    """Sets every rate of dropout and jitter to 0; much of it is no module, but a function that reads its rate here."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name, value in vars(part).items() if part is not None else ():
            if ("drop" in name or "jitter" in name) and isinstance(value, int | float) and not isinstance(value, bool):
                setattr(part, name, type(value)(0))


def _require_separable(model: PreTrainedModel) -> None:
    """Raises `ModelError` if what a token computes may depend on the document that stands before its own in a row."""
    text = model.config.get_text_config()
    mixing = sorted(set(getattr(text, "layer_types", None) or ()) - KEPT_APART)
    if model._is_stateful or mixing:  # the mark of models that carry a state from token to token
        what = f"layers of the kind {', '.join(mixing)}" if mixing else "layers that carry a state"
        raise ModelError(
            f"{type(model).__name__} has {what}, which see one packed row as one document; it cannot be trained yet. "
            "Models whose layers all have full or sliding attention can"
        )


def load_policy(path: Path, dtype: torch.dtype, *, quantized_on: torch.device | None = None) -> PreTrainedModel:
    """Loads a model directory for packed training, without dropout. Raises `ModelError` if it cannot be used.

    quantized_on: the device on which its linear layers become four bits a weight.
    """
    attention = register_attention()
    kind, implementation = (
        (AutoModelForImageTextToText, {"text_config": attention, "vision_config": "sdpa"})
        if reads(path)
        else (AutoModelForCausalLM, attention)
    )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        _without_chance(config)
        model = kind.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            quantization_config=None if quantized_on is None else quantization(dtype),
            device_map=None if quantized_on is None else {"": quantized_on},
            attn_implementation=implementation,
            local_files_only=True,
            trust_remote_code=False,  # left open, transformers would ask whether to run the directory's own code
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot load a causal language model from {path}: {error}") from error
    _require_separable(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if quantized_on is not None:
        as_loaded(model)
    return model
