"""A whole recipe: `RunConfig` is the only parameter of the training flow, and Prefect's page shows it as a form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from agentfly_lib.configs.agent import AgentConfig, EnvironmentChoice, HFAgentConfig
from agentfly_lib.configs.algorithm import AlgorithmConfig, OptimConfig
from agentfly_lib.configs.base import Config, SecretError
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
    """Name, place, length and seed of the run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """Name of the run's folder under `root`, and of the run in MLflow."""
    root: Path = Path("runs")
    """Folder of all runs, which also holds the local stores of MLflow and Prefect."""
    steps: PositiveInt = 100
    """Number of steps to train. A run that has begun keeps it. To train further, start another run whose
    `model.name_or_path` is `RUN/checkpoints/VERSION/hf`; its optimizer starts afresh."""
    seed: int = 0
    """Seed of the sampling and of the order of problems."""

    @property
    def directory(self) -> Path:
        return self.root / self.name


class RolloutConfig(Config):
    """How trajectories are collected."""

    problems_per_step: PositiveInt = 16
    """Number of problems in each step. The batch has this many times `chains` trajectories."""
    chains: PositiveInt = 8
    """Number of trajectories per problem (the group size)."""
    sampling: SamplingConfig = SamplingConfig()
    """How tokens are sampled."""
    max_turn_tokens: PositiveInt = 512
    """Maximum number of tokens that the policy may sample in one turn."""
    max_sampled_tokens: PositiveInt = 2048
    """Maximum number of tokens that the policy may sample in one trajectory."""
    max_prompt_tokens: PositiveInt = 1024
    """Maximum length of the first prompt, in tokens. Preparing a dataset fails if a prompt is longer."""
    context_length: PositiveInt = 4096
    """Maximum length of one segment in tokens, prompt included. It is also the engine's context length."""
    max_concurrency: PositiveInt = 128
    """Maximum number of chains in flight, over all collections and evaluations."""
    max_policy_lag: NonNegativeInt = 0
    """How many updates old the weights that sampled a token may be when it is trained on. 0 alternates collections and
    updates and is exactly on-policy. With L, the collections of the next L steps go on during an update."""
    chain_timeout_seconds: PositiveFloat = 600.0
    """Time limit for one trajectory, from its first prompt to its end."""
    stage_timeout_seconds: PositiveFloat = 3600.0
    """Time limit for one whole collection. Trajectories that are not finished by then are dropped and counted."""
    retries: NonNegativeInt = 1
    """Further attempts when a chain fails for an infrastructure reason."""
    max_consecutive_failures: PositiveInt = 16
    """This many infrastructure failures in a row count as an outage and end the collection."""
    flush_seconds: PositiveFloat = 0.1
    """A finished group is on disk at most this much later."""
    groups_per_part: PositiveInt = 64
    """Maximum number of groups in one shard part."""
    order: ProblemOrderConfig = EpochOrderConfig()
    """Which problems are drawn, and in what order."""
    dynamic_sampling: DynamicSamplingConfig = NoDynamicSamplingConfig()
    """Whether groups whose chains all did equally well are replaced."""


class LoraConfig(Config):
    """Low-rank adapters; only they are trained. There is no dropout, because it would make log-probs random."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """The product of the two matrices is scaled by alpha / rank."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of layers such as `q_proj`, or `all-linear`: all linear layers except the output head."""
    quantize: Literal["nf4"] | None = None
    """Store the frozen linear layers in four bits per weight (QLoRA). Needs `bitsandbytes`; not with ZeRO 3."""
    vision: bool = False
    """Also train adapters in the vision tower of a vision model."""


class OffloadConfig(Config):
    """What DeepSpeed keeps in host memory, or in files on a local disk, instead of on the GPU."""

    optimizer: Literal["none", "cpu", "nvme"] = "none"
    """Where to keep the optimizer's state and the float32 copy of the weights. The CPU then computes the update. `cpu`
    needs ZeRO 1 or higher, `nvme` needs ZeRO 3, and such a run cannot be resumed."""
    parameters: Literal["none", "cpu", "nvme"] = "none"
    """Where to keep the weights; needs ZeRO 3. Each layer's weights are fetched when the layer is computed."""
    nvme_path: Path | None = None
    """Folder on a fast local disk, for `nvme`, which needs libaio and a compiler (`apt install libaio-dev g++`)."""

    @property
    def nvme(self) -> bool:
        return "nvme" in (self.optimizer, self.parameters)


class LearnerConfig(Config):
    """DeepSpeed ranks, each in its own Ray actor."""

    ranks: PositiveInt = 1
    """Number of processes that train together, each on its own GPU if there are GPUs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks run; `auto` uses GPUs if there are any."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and activations. With bfloat16, the optimizer keeps a float32 copy of the weights."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """DeepSpeed's ZeRO stage. Ranks partition the optimizer state from 1, gradients from 2 and weights from 3."""
    microbatch_tokens: PositiveInt = 8192
    """Token budget of one packed forward pass. A sample that is longer is processed alone."""
    logit_chunk_tokens: PositiveInt = 512
    """Number of trained tokens whose logits are in memory at the same time."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory, more time."""
    sequence_parallel: PositiveInt = 1
    """Number of neighbouring ranks that share each packed row, for sequences too long for one GPU (Ulysses)."""
    offload: OffloadConfig = OffloadConfig()
    """What is kept outside the GPU's memory."""
    lora: LoraConfig | None = None
    """Train adapters instead of all weights; needs the package `peft`."""
    freeze_vision: bool = False
    """Do not train the vision tower of a vision model."""
    threads: PositiveInt = 1
    """CPU threads of each rank, on a CPU."""
    liger: Literal["auto"] | bool = "auto"
    """Liger's fused kernels for norms, positions and MLPs. `auto` uses them on a GPU if `liger-kernel` is installed."""
    allow_reshape: bool = False
    """Whether a run may continue from a checkpoint of another number of ranks or another ZeRO stage."""
    max_nonfinite_steps: PositiveInt = 3
    """This many updates in a row with a non-finite loss or gradient end the run."""
    start_timeout_seconds: PositiveFloat = 600.0
    """Time limit for the ranks to load the model or a checkpoint and to connect to each other."""
    update_timeout_seconds: PositiveFloat = 3600.0
    """Time limit for one update, and for each of the learner's other operations."""

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
            raise ValueError("lora.quantize: ZeRO 3 cannot deal out weights of four bits; set zero_stage to 2 or lower")
        if offload.nvme and offload.nvme_path is None:
            raise ValueError("offload to nvme needs offload.nvme_path, a folder on a fast local disk")
        return self


class EvaluationConfig(Config):
    """Held-out evaluation. The starting policy is always evaluated, as the baseline."""

    every_steps: NonNegativeInt = 10
    """Steps between two evaluations; 0 evaluates only at the start and at the end."""
    samples: PositiveInt = 4
    """Number of sampled trajectories per problem; pass@k is reported up to this k."""
    greedy: bool = True
    """Evaluate one greedy trajectory per problem as well."""
    sampling: SamplingConfig = SamplingConfig()
    """How the tokens of the sampled trajectories are sampled."""


class CheckpointConfig(Config):
    """When checkpoints are saved, and which are kept."""

    every_steps: PositiveInt = 10
    """Steps between two checkpoints. The last step is always saved."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to keep. A run resumes from the newest."""
    keep_best: NonNegativeInt = 0
    """Number of further checkpoints to keep: those with the highest held-out reward. Only evaluated versions count."""
    adapters_only: bool = False
    """With `learner.lora`, save only the adapters, without the merged model. This saves disk space, but
    `agentfly evaluate` and engines that load a checkpoint need the merged model."""


class TrackingConfig(Config):
    """What is logged to MLflow, and where."""

    uri: str | None = None
    """Tracking server; unset means MLFLOW_TRACKING_URI if that is set, else SQLite at `<run.root>/mlflow.db`."""
    experiment: str = "agentfly"
    """MLflow experiment that the run belongs to."""
    sample_trajectories: NonNegativeInt = 4
    """Number of trajectories of a step to log in readable form, as a table and as traces."""
    trace_every_steps: PositiveInt = 10
    """Steps between two logs of readable trajectories."""
    drain_seconds: PositiveFloat = 30.0
    """How long the end of a run waits for MLflow. What is not delivered by then is kept and sent at the next start."""

    @field_validator("uri")
    @classmethod
    def _no_secrets(cls, uri: str | None) -> str | None:
        if uri and re.match(r"https?://[^/@]*@", uri):
            raise SecretError(
                "a config is stored and shown, so it takes no user and password; "
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            )
        return uri


class RayConfig(Config):
    """The Ray cluster that engines and learner ranks run in."""

    address: str | None = None
    """Cluster to join; unset starts Ray on this machine for the duration of the run."""
    object_store_mib: Annotated[int, Field(ge=80)] = 200
    """Shared memory of a Ray that the run starts itself, in MiB. Nothing large goes through it."""


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
                "log-probs would not be the policy's; training rollouts refuse this, evaluation.sampling allows it"
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
            raise ValueError("learner.freeze_vision freezes the tower, but learner.lora.vision trains it; take one")
        if lora is not None and lora.vision and self.inference.lora_sync == "adapter":
            raise ValueError(
                "learner.lora.vision: engines take adapters of the language model only; set "
                "inference.lora_sync='merged'"
            )
        return self

    @model_validator(mode="after")
    def _imitates(self) -> RunConfig:
        if isinstance(self.data, ShardsDataConfig):
            if self.algorithm.advantage.type != "accepted":
                raise ValueError(
                    "data.type='shards' imitates trajectories, but algorithm.advantage.type="
                    f"{self.algorithm.advantage.type!r} compares them; leave it out"
                )
            if self.rollout.chains != 1:
                raise ValueError(
                    f"rollout.chains={self.rollout.chains}: imitated trajectories have no group; leave it out. A step "
                    "takes rollout.problems_per_step trajectories"
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
                f"rollout.max_sampled_tokens={rollout.max_sampled_tokens}; lower the first or raise the second"
            )
        if rollout.max_policy_lag and self.inference.placement == "colocated":
            raise ValueError(
                f"rollout.max_policy_lag={rollout.max_policy_lag} collects during updates, but with "
                "inference.placement='colocated' the engines sleep then; use 'split', or a lag of 0"
            )
        if rollout.chains < 2 and not self.algorithm.works_with_one_chain:
            raise ValueError(
                "rollout.chains=1 gives every group an advantage of 0, so nothing would be learnt; use 2 or more, or "
                "an algorithm.advantage that does not compare the chains of a problem (reinforce_pp, gae)"
            )
        if rollout.dynamic_sampling.type == "signal" and rollout.chains < 2:
            raise ValueError(
                "rollout.dynamic_sampling compares the chains of a problem, so it needs rollout.chains=2 or more"
            )
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
                f"data.train_problems={train} is fewer than rollout.problems_per_step={rollout.problems_per_step}; "
                "raise the first or lower the second"
            )
        return self


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}
