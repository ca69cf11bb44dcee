"""The learning rule, part by part. `docs/algorithms.md` gives the formula and the source of each part.

Each part is chosen by its `type` and has the published values as defaults. Where one choice implies another (GSPO
averages over sequences, REINFORCE++ subtracts its penalty from the reward), the implied value is the default.
Combinations that do not fit are refused here, before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from agentfly_lib.configs.base import Config

__all__ = [
    "AcceptedAdvantageConfig",
    "AdvantageConfig",
    "AggregationConfig",
    "AlgorithmConfig",
    "CispoLossConfig",
    "CorrectionConfig",
    "CustomAdvantageConfig",
    "DrGrpoAdvantageConfig",
    "DrGrpoAggregationConfig",
    "GaeAdvantageConfig",
    "GigpoAdvantageConfig",
    "GrpoAdvantageConfig",
    "GspoLossConfig",
    "KlConfig",
    "LossConfig",
    "MaskGeometricConfig",
    "MaskSequenceConfig",
    "NllLossConfig",
    "NoCorrectionConfig",
    "OptimConfig",
    "PpoLossConfig",
    "ReinforcePPAdvantageConfig",
    "ReinforcePPBaselineAdvantageConfig",
    "RlooAdvantageConfig",
    "SequenceMeanConfig",
    "TisSequenceConfig",
    "TisTokenConfig",
    "TokenMeanConfig",
    "TurnReturnsAdvantageConfig",
]

Fraction = Annotated[float, Field(ge=0, le=1)]


class _Advantage(Config):
    compares: ClassVar[Literal["group", "batch", "nothing"]] = "group"
    """What a trajectory is compared with: the chains of its problem, the whole step, or nothing."""
    whitens: ClassVar[bool] = False
    """Advantages get mean 0 and variance 1 over all trained tokens of the step."""


class GrpoAdvantageConfig(_Advantage):
    """A_i = (R_i - mean) / (std + 1e-6) within the group, sample standard deviation (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"


class DrGrpoAdvantageConfig(_Advantage):
    """A_i = R_i - mean within the group (arXiv 2503.20783)."""

    type: Literal["dr_grpo"] = "dr_grpo"


class RlooAdvantageConfig(_Advantage):
    """A_i = G / (G - 1) (R_i - mean): the reward minus the mean of the others (arXiv 2402.14740)."""

    type: Literal["rloo"] = "rloo"


class ReinforcePPAdvantageConfig(_Advantage):
    """Undiscounted return-to-go of the reward minus the KL penalty, whitened over the step (arXiv 2501.03262)."""

    type: Literal["reinforce_pp"] = "reinforce_pp"
    compares: ClassVar = "batch"
    whitens: ClassVar = True


class ReinforcePPBaselineAdvantageConfig(_Advantage):
    """A_i = R_i - mean within the group, whitened over the step; the KL penalty is a k2 loss (arXiv 2501.03262)."""

    type: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"
    whitens: ClassVar = True


class GigpoAdvantageConfig(_Advantage):
    """GRPO's advantage, plus `omega` times that of each turn among turns that began in the same state (2505.10978)."""

    type: Literal["gigpo"] = "gigpo"
    omega: NonNegativeFloat = 1.0
    """Weight of the turn's advantage."""
    gamma: Fraction = 0.95
    """Discount per turn for the rewards that follow a turn."""
    normalise: bool = True
    """Divide by the standard deviation of the group and of each state; if false, only subtract the mean."""


class TurnReturnsAdvantageConfig(_Advantage):
    """Each turn's discounted sum of the rewards that follow, normalised among all turns of the group (2402.03300)."""

    type: Literal["turn_returns"] = "turn_returns"
    gamma: Fraction = 1.0
    """Discount per turn."""


class GaeAdvantageConfig(_Advantage):
    """PPO's generalised advantage estimation with a value head, over trained tokens only (arXiv 1506.02438)."""

    type: Literal["gae"] = "gae"
    compares: ClassVar = "nothing"
    whitens: ClassVar = True
    gamma: Fraction = 1.0
    """Discount per trained token."""
    lam: Fraction = 0.95
    """GAE's lambda: the weight of longer returns."""
    value_coefficient: PositiveFloat = 0.5
    """Weight of the value head's squared error in the loss."""
    value_clip: PositiveFloat = 0.2
    """Clip range of the value loss, around the value at the start of the step."""


class AcceptedAdvantageConfig(_Advantage):
    """1 for trajectories whose reward is at least `min_reward`; the others are not trained on (rejection sampling)."""

    type: Literal["accepted"] = "accepted"
    compares: ClassVar = "nothing"
    min_reward: float | Literal["none"] = 1.0
    """Lowest reward that is accepted. `none` accepts every trajectory that has a reward (supervised fine-tuning)."""
    distinct: bool = True
    """If several trajectories of one problem sampled the same tokens, train only on the first."""


class CustomAdvantageConfig(_Advantage):
    """Your own function. It takes the episodes of a group and returns one advantage per episode, or one per token."""

    type: Literal["custom"] = "custom"
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """`package.module:name`."""
    whiten: bool = False
    """Give the advantages mean 0 and variance 1 over all trained tokens of the step."""


AdvantageConfig = Annotated[
    GrpoAdvantageConfig
    | DrGrpoAdvantageConfig
    | RlooAdvantageConfig
    | ReinforcePPAdvantageConfig
    | ReinforcePPBaselineAdvantageConfig
    | GigpoAdvantageConfig
    | TurnReturnsAdvantageConfig
    | GaeAdvantageConfig
    | AcceptedAdvantageConfig
    | CustomAdvantageConfig,
    Field(discriminator="type"),
]


class PpoLossConfig(Config):
    """max(-A r, -A clip(r)) (arXiv 1707.06347); the defaults are DAPO's clip-higher (arXiv 2503.14476)."""

    type: Literal["ppo"] = "ppo"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Ratios below 1 - clip_low are clipped."""
    clip_high: PositiveFloat = 0.28
    """Ratios above 1 + clip_high are clipped."""
    dual_clip: Annotated[float, Field(gt=1)] | Literal["none"] = 3.0
    """Upper bound of the loss for negative advantages: min(L, -dual_clip * A); `none`: no bound (arXiv 1912.09729)."""


class CispoLossConfig(Config):
    """-sg(min(r, cap)) A l: every token keeps its gradient, with a bounded weight (arXiv 2506.13585)."""

    type: Literal["cispo"] = "cispo"
    cap: Annotated[float, Field(ge=1)] = 5.0
    """Largest weight of a token."""


class GspoLossConfig(Config):
    """PPO's clipping, applied to exp of a trajectory's mean log-ratio, not to each token's ratio (arXiv 2507.18071)."""

    type: Literal["gspo"] = "gspo"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 3e-4
    """Ratios below 1 - clip_low are clipped. The ratio is a mean over the trajectory, so it is close to 1."""
    clip_high: PositiveFloat = 4e-4
    """Ratios above 1 + clip_high are clipped."""


class NllLossConfig(Config):
    """-A l: maximum likelihood, weighted by the advantage; for supervised and rejection-sampling fine-tuning."""

    type: Literal["nll"] = "nll"


LossConfig = Annotated[
    PpoLossConfig | CispoLossConfig | GspoLossConfig | NllLossConfig,
    Field(discriminator="type"),
]


class TokenMeanConfig(Config):
    """sum(m L) / sum(m) over the whole optimizer batch: every token counts the same."""

    type: Literal["token_mean"] = "token_mean"


class SequenceMeanConfig(Config):
    """1/B sum_i 1/T_i sum_t m L: every trajectory counts the same."""

    type: Literal["seq_mean_token_mean"] = "seq_mean_token_mean"


class DrGrpoAggregationConfig(Config):
    """sum(m L) / (B L_max) with a constant L_max, independent of the trajectory's length (arXiv 2503.20783)."""

    type: Literal["dr_grpo"] = "dr_grpo"
    max_tokens: PositiveInt | None = None
    """L_max; `rollout.max_sampled_tokens` if unset."""


AggregationConfig = Annotated[
    TokenMeanConfig | SequenceMeanConfig | DrGrpoAggregationConfig, Field(discriminator="type")
]


class KlConfig(Config):
    """A penalty for the KL divergence from a frozen copy of the starting policy."""

    coefficient: NonNegativeFloat = 0.0
    """Weight of the penalty; 0 turns it off. Above 0, every rank holds a second copy of the model, unless LoRA is
    used."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1 = -x, k2 = x^2 / 2, k3 = exp(x) - x - 1, where x = f - l: the frozen policy's log-prob minus the trained
    policy's."""
    place: Literal["loss", "reward"] = "loss"
    """`loss` adds the penalty to the loss (k3 is multiplied by the ratio, so that its gradient is unbiased). `reward`
    subtracts it from the reward token by token, as measured at the start of the step."""

    @model_validator(mode="after")
    def _useful(self) -> KlConfig:
        if self.coefficient and (self.estimator, self.place) == ("k1", "loss"):
            raise ValueError(
                "estimator='k1' with place='loss' has a gradient whose mean is zero, so it would penalise nothing; "
                "use k2 or k3, or place='reward'"
            )
        return self


class NoCorrectionConfig(Config):
    """No correction: assume that the engine and the learner compute the same log-probs."""

    type: Literal["none"] = "none"


class TisTokenConfig(Config):
    """Truncated importance sampling per token: weight min(exp(old - recorded), cap)."""

    type: Literal["tis_token"] = "tis_token"
    cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight of a token."""


class TisSequenceConfig(Config):
    """One truncated weight per trajectory: min(exp(sum(old - recorded)), cap)."""

    type: Literal["tis_sequence"] = "tis_sequence"
    cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight of a trajectory."""


class MaskSequenceConfig(Config):
    """One weight per trajectory: exp(sum(old - recorded)), or 0 if that is above `limit`."""

    type: Literal["mask_sequence"] = "mask_sequence"
    limit: Annotated[float, Field(ge=1)] = 3.0
    """Trajectories with a larger weight are left out of the loss."""


class MaskGeometricConfig(Config):
    """Weight 0 for trajectories whose mean ratio exp(mean(old - recorded)) is outside [low, high], else 1."""

    type: Literal["mask_geometric"] = "mask_geometric"
    low: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Trajectories with a smaller mean ratio are left out of the loss."""
    high: Annotated[float, Field(ge=1)] = 1.01
    """Trajectories with a larger mean ratio are left out of the loss."""


CorrectionConfig = Annotated[
    NoCorrectionConfig | TisTokenConfig | TisSequenceConfig | MaskSequenceConfig | MaskGeometricConfig,
    Field(discriminator="type"),
]


class AlgorithmConfig(Config):
    """The learning rule: advantage, loss and corrections."""

    advantage: AdvantageConfig = GrpoAdvantageConfig()
    """How much better than expected a trajectory, a turn or a token was."""
    loss: LossConfig = PpoLossConfig()
    """The loss of one token."""
    aggregation: AggregationConfig = TokenMeanConfig()
    """How the losses of tokens are averaged; with `gspo`, the default is `seq_mean_token_mean`."""
    kl: KlConfig = KlConfig()
    """Penalty for moving away from the starting policy."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of a bonus for the policy's entropy at trained tokens, subtracted from the loss; 0 turns it off."""
    correction: CorrectionConfig = TisTokenConfig()
    """Importance weights for the difference between the policy that sampled and the learner's; `none` for maximum
    likelihood."""
    mask_truncated: bool = False
    """Leave trajectories that were cut off by a limit out of the loss. They still count in their group."""
    ablation_train_on_all_tokens: bool = False
    """FOR EXPERIMENTS ONLY: train on prompts and tool results too, as if the policy had written them."""

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, values: Any) -> Any:
        """Fills in what another choice decides, where it is not given."""
        if not isinstance(values, Mapping):
            return values
        filled = dict(values)
        for key, usual in _USUAL.items():
            section = values.get(key)
            if isinstance(section, Mapping):
                filled[key] = {"type": usual} | dict(section)
        loss, advantage = _type_of(values.get("loss")), _type_of(values.get("advantage"))
        if loss == "gspo":
            filled.setdefault("aggregation", {"type": "seq_mean_token_mean"})
        if loss == "nll":
            filled.setdefault("correction", {"type": "none"})
        if advantage == "accepted":
            filled.setdefault("loss", {"type": "nll"})
            if _type_of(filled["loss"]) == "nll":
                filled.setdefault("correction", {"type": "none"})
        kl = values.get("kl")
        if advantage in _KL_OF and isinstance(kl, Mapping):
            filled["kl"] = _KL_OF[advantage] | dict(kl)
        return filled

    @model_validator(mode="after")
    def _fits_together(self) -> AlgorithmConfig:
        advantage, loss = self.advantage.type, self.loss.type
        if loss == "gspo" and self.aggregation.type != "seq_mean_token_mean":
            raise ValueError(
                f"loss.type='gspo' is a mean over trajectories and does not work with "
                f"aggregation.type={self.aggregation.type!r}; leave aggregation out"
            )
        if (advantage == "accepted") != (loss == "nll"):
            raise ValueError(
                f"advantage.type={advantage!r} does not work with loss.type={loss!r}: 'nll' (maximum likelihood) and "
                "'accepted' need each other; change one of the two"
            )
        if loss == "nll" and self.correction.type != "none":
            raise ValueError(
                f"loss.type='nll' has no ratio that correction.type={self.correction.type!r} could correct; use 'none'"
            )
        if loss == "nll" and self.kl.place == "reward" and self.kl.coefficient:
            raise ValueError("loss.type='nll' does not read rewards token by token; use kl.place='loss'")
        if self.mask_truncated and self.advantage.compares == "group" and self.needs_measurements:
            raise ValueError(
                "mask_truncated leaves trajectories unmeasured, but with kl.place='reward' their group needs their "
                "penalty; use kl.place='loss'"
            )
        fixed = _KL_OF.get(advantage)
        if fixed and self.kl.coefficient and (self.kl.estimator, self.kl.place) != (fixed["estimator"], fixed["place"]):
            raise ValueError(
                f"advantage.type={advantage!r} is defined with kl.estimator={fixed['estimator']!r} and "
                f"kl.place={fixed['place']!r}, not {self.kl.estimator!r} and {self.kl.place!r}; leave both out"
            )
        return self

    @property
    def whitens(self) -> bool:
        """True if advantages are whitened over the step."""
        advantage = self.advantage
        return advantage.whiten if isinstance(advantage, CustomAdvantageConfig) else advantage.whitens

    @property
    def has_values(self) -> bool:
        """True if the policy has a value head."""
        return isinstance(self.advantage, GaeAdvantageConfig)

    @property
    def needs_measurements(self) -> bool:
        """True if advantages depend on what the learner measures at the start of the step, not on rewards alone."""
        return self.has_values or (self.kl.coefficient > 0 and self.kl.place == "reward")

    @property
    def works_with_one_chain(self) -> bool:
        """True if a problem may be tried once: a trajectory is compared with something other than its own group."""
        return self.advantage.compares != "group"


_USUAL = {"advantage": "grpo", "loss": "ppo", "aggregation": "token_mean", "correction": "tis_token"}
"""The `type` of a section that does not name one."""

_KL_OF: dict[str | None, dict[str, str]] = {
    "reinforce_pp": {"estimator": "k1", "place": "reward"},
    "reinforce_pp_baseline": {"estimator": "k2", "place": "loss"},
}
"""Where and how REINFORCE++ penalises the divergence."""


def _type_of(section: Any) -> str | None:
    return section.get("type") if isinstance(section, Mapping) else getattr(section, "type", None)


class OptimConfig(Config):
    """AdamW and its schedule."""

    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    eps: PositiveFloat = 1e-8
    """Added to the square root of AdamW's second moment."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay, for norms and biases too."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are clipped to this norm, taken over all ranks."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up from 0."""
    final_lr_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Linear decay over the run's steps to this fraction of `lr`; 1 keeps it constant."""
    minibatches: PositiveInt = 1
    """Optimizer updates per step. The trajectories of a step are split into this many batches."""

    @model_validator(mode="after")
    def _betas(self) -> OptimConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {self.betas}")
        return self
