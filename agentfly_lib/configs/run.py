"""A whole recipe: `RunConfig` is the one parameter of the training flow, and the form in the Prefect page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from agentfly_lib.configs.agent import AgentConfig, EnvironmentChoice, HFAgentConfig
from agentfly_lib.configs.algorithm import AlgorithmConfig, OptimConfig
from agentfly_lib.configs.base import Config
from agentfly_lib.configs.collection import (
    DynamicSamplingConfig,
    EpochOrderConfig,
    NoDynamicSamplingConfig,
    ProblemOrderConfig,
)
from agentfly_lib.configs.data import DataConfig, ShardsDataConfig
from agentfly_lib.configs.inference import InferenceConfig, SamplingConfig
from agentfly_lib.configs.model import ModelConfig

__all__ = [
    "CheckpointConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "LoraConfig",
    "OffloadConfig",
    "RayConfig",
    "RolloutConfig",
    "RunConfig",
    "RunSection",
    "TrackingConfig",
]


class RunSection(Config):
    """Identity and length of the run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """Folder of the run under `root`, and its name in MLflow."""
    root: Path = Path("runs")
    """Folder of all runs; MLflow's and Prefect's local stores lie here too."""
    steps: PositiveInt = 100
    """Steps to train; raise it to go on with a finished run."""
    seed: int = 0
    """Seed of sampling and of the order of problems."""

    @property
    def directory(self) -> Path:
        return self.root / self.name


class RolloutConfig(Config):
    """How trajectories are collected."""

    problems_per_step: PositiveInt = 16
    """Problems asked in each step; times `chains` it is the batch."""
    chains: PositiveInt = 8
    """Trajectories per problem (the group)."""
    sampling: SamplingConfig = SamplingConfig()
    """How tokens are drawn."""
    max_turn_tokens: PositiveInt = 512
    """Tokens the policy may sample in one turn."""
    max_sampled_tokens: PositiveInt = 2048
    """Tokens the policy may sample in one trajectory."""
    max_prompt_tokens: PositiveInt = 1024
    """Longest first prompt; a longer one is refused when the dataset is prepared."""
    context_length: PositiveInt = 4096
    """Tokens of one segment, prompt included; the engine is started with this length."""
    max_concurrency: PositiveInt = 128
    """Chains in flight at the same time, over all collections and evaluations."""
    max_policy_lag: NonNegativeInt = 0
    """Updates that the weights which sample a token may be behind those that are trained on it. 0 collects and updates
    in turn, exactly on-policy; with L the collections of the next L steps go on during an update."""
    chain_timeout_seconds: PositiveFloat = 600.0
    """Limit of one trajectory, from its first prompt to its end."""
    stage_timeout_seconds: PositiveFloat = 3600.0
    """Limit of one whole collection; what is not done by then is dropped, and counted."""
    retries: NonNegativeInt = 1
    """Tries after the first when a chain fails for an infrastructure reason."""
    max_consecutive_failures: PositiveInt = 16
    """So many infrastructure failures in a row end the collection as an outage instead of going on."""
    flush_seconds: PositiveFloat = 0.1
    """A finished group is on disk at most this much later."""
    groups_per_part: PositiveInt = 64
    """Largest number of groups in one shard part."""
    order: ProblemOrderConfig = EpochOrderConfig()
    """Which problems come when."""
    dynamic_sampling: DynamicSamplingConfig = NoDynamicSamplingConfig()
    """Whether groups without a signal are replaced."""


class LoraConfig(Config):
    """Low-rank adapters: only they are trained. Without dropout, which would make log-probs random."""

    rank: PositiveInt = 16
    """Inner width of the adapters."""
    alpha: PositiveFloat = 32.0
    """The product of the two matrices counts alpha / rank times."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of layers, such as `q_proj`; all linear ones but the output head if not said."""
    quantize: Literal["nf4"] | None = None
    """Keep the frozen linear layers as four bits a weight (QLoRA); needs `bitsandbytes`. Not with ZeRO 3."""
    vision: bool = False
    """Adapters in the vision tower too, of a model that sees."""


class OffloadConfig(Config):
    """What DeepSpeed keeps in the host's memory, or in files on a local disk, instead of on the GPU."""

    optimizer: Literal["none", "cpu", "nvme"] = "none"
    """The optimizer's state and the float32 copy of the weights; the update is then computed by the CPU. From ZeRO 1
    on; `nvme` with ZeRO 3."""
    parameters: Literal["none", "cpu", "nvme"] = "none"
    """The weights, with ZeRO 3: each layer's are fetched when it is computed."""
    nvme_path: Path | None = None
    """Folder on a fast local disk, for `nvme`, which needs libaio and a compiler (`apt install libaio-dev g++`)."""

    @property
    def nvme(self) -> bool:
        return "nvme" in (self.optimizer, self.parameters)


class LearnerConfig(Config):
    """DeepSpeed ranks, each in its own Ray actor."""

    ranks: PositiveInt = 1
    """Processes that train together, each on a GPU of its own where there are GPUs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks run; `auto` takes GPUs if there are any."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations; with bfloat16 the optimizer keeps a float32 copy of the weights."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """What ranks share out instead of each keeping all: from 1 optimizer state, from 2 gradients, from 3 weights."""
    microbatch_tokens: PositiveInt = 8192
    """Token budget of one packed forward pass; a longer sample goes alone."""
    logit_chunk_tokens: PositiveInt = 512
    """Trained tokens whose logits exist at the same time."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
    sequence_parallel: PositiveInt = 1
    """Neighbouring ranks that share each packed row, for sequences that are too long for one GPU (Ulysses)."""
    offload: OffloadConfig = OffloadConfig()
    """What is kept outside of the GPU's memory."""
    lora: LoraConfig | None = None
    """Train adapters instead of all weights; needs the package `peft`."""
    freeze_vision: bool = False
    """Leave the vision tower of a model that sees as it is."""
    threads: PositiveInt = 1
    """CPU threads of a rank on a CPU."""
    liger: Literal["auto"] | bool = "auto"
    """Liger's fused kernels for norms, positions and MLPs: "auto" takes them on a GPU where `liger-kernel` is."""
    allow_reshape: bool = False
    """Whether a run may go on from a checkpoint that another number of ranks, or another ZeRO stage, has written."""
    max_nonfinite_steps: PositiveInt = 3
    """So many updates in a row with a non-finite loss or gradient end the run."""
    start_timeout_seconds: PositiveFloat = 600.0
    """Limit for the ranks to load the model, or a checkpoint, and to meet."""
    update_timeout_seconds: PositiveFloat = 3600.0
    """Limit of one update."""

    @model_validator(mode="after")
    def _offloads(self) -> LearnerConfig:
        offload, stage = self.offload, self.zero_stage
        if offload.optimizer != "none" and stage == 0:
            raise ValueError("offload.optimizer needs ZeRO: set zero_stage to 1, 2 or 3")
        if offload.optimizer == "nvme" and stage != 3:
            raise ValueError(f'offload.optimizer="nvme" needs zero_stage=3, not {stage}')
        if offload.parameters != "none" and stage != 3:
            raise ValueError(f"offload.parameters needs zero_stage=3, not {stage}")
        if self.lora is not None and self.lora.quantize and stage == 3:
            raise ValueError("lora.quantize: ZeRO 3 cannot deal out weights of four bits; set zero_stage to 2")
        if offload.nvme and offload.nvme_path is None:
            raise ValueError("offload to nvme needs offload.nvme_path, a folder on a fast local disk")
        return self


class EvaluationConfig(Config):
    """Held-out evaluation; the starting policy is always the baseline row."""

    every_steps: NonNegativeInt = 10
    """0 evaluates only the start and the end."""
    samples: PositiveInt = 4
    """Sampled trajectories per problem, for pass@k up to this k."""
    greedy: bool = True
    """Evaluate one greedy trajectory per problem too."""
    sampling: SamplingConfig = SamplingConfig()
    """How the sampled trajectories' tokens are drawn."""


class CheckpointConfig(Config):
    """What is kept."""

    every_steps: PositiveInt = 10
    """The last step is always saved."""
    keep_last: PositiveInt = 2
    """The newest ones; a resume starts from the newest."""
    keep_best: NonNegativeInt = 0
    """Besides these, the ones with the highest held-out reward; only versions that are evaluated too take part."""
    adapters_only: bool = False
    """With `learner.lora`, keep the adapters without a merged model beside them: small, but `agentfly evaluate` and
    engines that load a checkpoint need the merged one."""


class TrackingConfig(Config):
    """MLflow."""

    uri: str | None = None
    """Tracking server; unset means MLFLOW_TRACKING_URI if that is set, else SQLite at `<run.root>/mlflow.db`."""
    experiment: str = "agentfly"
    """MLflow experiment that the runs belong to."""
    sample_trajectories: NonNegativeInt = 4
    """Trajectories of a step that are logged readably, as a table and as traces."""
    trace_every_steps: PositiveInt = 10
    """Steps from one logging of readable trajectories to the next."""
    drain_seconds: PositiveFloat = 30.0
    """How long the end of a run waits for MLflow; what is not delivered by then is kept and sent at the next start."""

    @field_validator("uri")
    @classmethod
    def _no_secrets(cls, uri: str | None) -> str | None:
        if uri and re.match(r"https?://[^/@]*@", uri):
            raise ValueError(
                "a config is stored and shown, so it takes no user and password; "
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            )
        return uri


class RayConfig(Config):
    """Where the long-lived actors live."""

    address: str | None = None
    """A cluster to join; unset starts Ray on this machine for the time of the run."""
    object_store_mib: Annotated[int, Field(ge=80)] = 200
    """Shared memory of a Ray that the run starts for itself, MiB; nothing large goes through it."""


class RunConfig(Config):
    """Everything that defines a training run."""

    run: RunSection
    model: ModelConfig
    data: DataConfig
    agent: AgentConfig = HFAgentConfig()
    rollout: RolloutConfig = RolloutConfig()
    inference: InferenceConfig = InferenceConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    ray: RayConfig = RayConfig()

    @model_validator(mode="before")
    @classmethod
    def _data_of_the_environment(cls, values: Any) -> Any:
        """`data.type = "environment"` alone means the environment that the agent acts in."""
        if not isinstance(values, Mapping) or not isinstance(values.get("data"), Mapping):
            return values
        data, agent = values["data"], values.get("agent")
        acts_in = agent.get("environment") if isinstance(agent, Mapping) else None
        if data.get("type") != "environment" or "name" in data or not isinstance(acts_in, Mapping):
            return values
        found = {key: acts_in[key] for key in EnvironmentChoice.model_fields if key in acts_in}
        return {**values, "data": {**found, **data}}

    @field_validator("rollout")
    @classmethod
    def _exact_logprobs(cls, rollout: RolloutConfig) -> RolloutConfig:
        if altered := rollout.sampling.altered:
            raise ValueError(
                f"sampling: {', '.join(altered)} would change the distribution that is sampled, so that the recorded "
                "log-probs were not the policy's; training rollouts refuse them (evaluation.sampling takes them)"
            )
        return rollout

    @model_validator(mode="before")
    @classmethod
    def _imitation(cls, values: Any) -> Any:
        """Where trajectories are imitated, each is a group of its own, and the loss is maximum likelihood."""
        if not isinstance(values, Mapping) or _section(values, "data").get("type") != "shards":
            return values
        rollout, algorithm = _section(values, "rollout"), _section(values, "algorithm")
        advantage = {"type": "accepted"} | dict(_section(algorithm, "advantage"))
        return dict(values) | {
            "rollout": {"chains": 1} | dict(rollout),
            "algorithm": dict(algorithm) | {"advantage": advantage},
        }

    @model_validator(mode="after")
    def _tower(self) -> RunConfig:
        lora = self.learner.lora
        if self.learner.freeze_vision and lora is not None and lora.vision:
            raise ValueError("learner.freeze_vision leaves the tower as it is, learner.lora.vision trains it; take one")
        if lora is not None and lora.vision and self.inference.lora_sync == "adapter":
            raise ValueError(
                "learner.lora.vision: engines take adapters of the language part alone; set "
                "inference.lora_sync='merged'"
            )
        return self

    @model_validator(mode="after")
    def _imitates(self) -> RunConfig:
        if isinstance(self.data, ShardsDataConfig):
            if self.algorithm.advantage.type != "accepted":
                raise ValueError(
                    f"data.type='shards' imitates trajectories, and algorithm.advantage.type="
                    f"{self.algorithm.advantage.type!r} compares them; leave it out"
                )
            if self.rollout.chains != 1:
                raise ValueError(
                    f"rollout.chains={self.rollout.chains}: trajectories that are imitated have no group; leave it "
                    "out. A step takes rollout.problems_per_step of them"
                )
        return self

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        rollout, trajectories = self.rollout, self.rollout.problems_per_step * self.rollout.chains
        if rollout.context_length <= rollout.max_prompt_tokens:
            raise ValueError(
                f"rollout.context_length={rollout.context_length} leaves no room after a prompt of "
                f"rollout.max_prompt_tokens={rollout.max_prompt_tokens} tokens; raise the first or lower the second"
            )
        if rollout.max_turn_tokens > rollout.max_sampled_tokens:
            raise ValueError(
                f"rollout.max_turn_tokens={rollout.max_turn_tokens} is more than a trajectory may sample, "
                f"rollout.max_sampled_tokens={rollout.max_sampled_tokens}"
            )
        if rollout.max_policy_lag and self.inference.placement == "colocated":
            raise ValueError(
                f"rollout.max_policy_lag={rollout.max_policy_lag} collects during updates, but with "
                "inference.placement='colocated' the engines sleep then; use 'split', or a lag of 0"
            )
        if rollout.chains < 2 and not self.algorithm.works_with_one_chain:
            raise ValueError(
                "rollout.chains=1 gives every group an advantage of 0, nothing would be learnt; use 2 or more, or an "
                "algorithm.advantage that does not compare the chains of a problem (reinforce_pp, gae)"
            )
        if rollout.dynamic_sampling.type == "signal" and rollout.chains < 2:
            raise ValueError("rollout.dynamic_sampling compares the chains of a problem; rollout.chains=1 has none")
        if trajectories % self.optim.minibatches:
            raise ValueError(
                f"optim.minibatches={self.optim.minibatches} does not divide the {trajectories} trajectories of a step "
                f"(rollout.problems_per_step={rollout.problems_per_step} x rollout.chains={rollout.chains})"
            )
        shared = self.learner.sequence_parallel
        if self.learner.ranks % shared:
            raise ValueError(f"learner.sequence_parallel={shared} does not divide learner.ranks={self.learner.ranks}")
        if (trajectories // self.optim.minibatches) % (self.learner.ranks // shared):
            raise ValueError(
                f"learner.ranks={self.learner.ranks}"
                + (f" / learner.sequence_parallel={shared}" if shared > 1 else "")
                + f" does not divide a minibatch of {trajectories // self.optim.minibatches} trajectories"
            )
        train = getattr(self.data, "train_problems", None)
        if train is not None and train < rollout.problems_per_step:
            raise ValueError(
                f"data.train_problems={train} is fewer than rollout.problems_per_step={rollout.problems_per_step}"
            )
        return self


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}
