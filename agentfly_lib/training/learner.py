"""One rank of the learner: it owns a share of the weights and of the optimizer, and turns steps into new versions.

A plain class: it runs in a Ray actor, in a test's process, or alone. All ranks call the same methods in the same order
(they are collective). The version of the policy is the number of steps done; `update` for a step that is already done
returns the same report again, so a caller that died between the update and its record may simply ask once more.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from agentfly_lib.chat.image_reader import vision_token_ids
from agentfly_lib.chat.images import digest_of
from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import ConfigError, LearnerError, ShardError
from agentfly_lib.refs import CheckpointRef, ModelRef, StepReport
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.learned import write_learned
from agentfly_lib.store.scored import load_scored_groups
from agentfly_lib.training.checkpoint import (
    CheckpointState,
    copy_model_files,
    read_state,
    require_resumable,
    seal,
    staging_directory,
    verify_checkpoint,
)
from agentfly_lib.training.disk import free_bytes, require_space, writing
from agentfly_lib.training.engine import TrainingEngine, give_back_cache, join_process_group
from agentfly_lib.training.identity import differences, training_identity
from agentfly_lib.training.liger import use_liger
from agentfly_lib.training.lora import adapter_files, add_adapters, without_adapters
from agentfly_lib.training.metrics import finite_only, sample_metrics
from agentfly_lib.training.packing import plan_step, to_batch
from agentfly_lib.training.policy import PolicyInputs, PolicyModule, attention_tokens, load_policy
from agentfly_lib.training.quantize import require_quantization
from agentfly_lib.training.reshape import can_reshape, needs_universal, universal_checkpoint
from agentfly_lib.training.samples import build_samples
from agentfly_lib.training.saving import BackgroundSave, host_copy
from agentfly_lib.training.sending import WeightSender
from agentfly_lib.training.sequence import SequenceGroup
from agentfly_lib.training.staleness import fresh_groups, lag_metrics
from agentfly_lib.training.update import Reference, Seconds, StepResult, StepUpdate
from agentfly_lib.training.vision import Eyes, freeze_tower
from agentfly_lib.training.weights import (
    CANARY_TOKENS,
    canary_token_ids,
    gather_adapter,
    gather_weights,
    size_of,
    weights_digest,
    write_weights,
)
from agentfly_lib.types import TrainingSample, TrajectoryGroup

__all__ = ["LearnerRank"]

logger = logging.getLogger(__name__)

_TAG = "state"


class LearnerRank:
    """A DeepSpeed rank. Call `setup` first, `close` last."""

    def __init__(self) -> None:
        self.policy_version = -1
        """Version of the weights it holds; -1 before `setup`."""
        self.clean = False
        """False during an update, and for good once one failed half-way: the weights are then of no version."""
        self._saving = threading.Lock()
        """Held by who begins a checkpoint, or waits for one: `finish_checkpoint` is called beside everything else."""

    def setup(
        self,
        *,
        rank: int,
        world: int,
        address: str,
        port: int,
        config: RunConfig,
        model: ModelRef,
        checkpoint: CheckpointRef | None = None,
    ) -> int:
        """Joins the other ranks and loads weights: of the checkpoint if there is one, else of the model directory.

        Returns the policy version. Raises `ModelError`, `ShardError` (a damaged checkpoint, naming the file) or
        `LearnerError` (a checkpoint of another shape or another config, naming the keys).
        """
        self.rank, self.world, self.config, self.model = rank, world, config, model
        self.device = _device(config.learner.device)
        require_quantization(config.learner)
        state = self._check(checkpoint) if checkpoint is not None else None
        if self.device.type == "cpu":
            torch.set_num_threads(config.learner.threads)
        join_process_group(rank=rank, world=world, address=address, port=port, device=self.device)
        self._saves = BackgroundSave(seconds=max(1800.0, 2 * config.learner.update_timeout_seconds))

        dtype = getattr(torch, config.learner.dtype)
        lora = config.learner.lora
        policy_model = load_policy(model.path, dtype, quantized_on=self.device if lora and lora.quantize else None)
        use_liger(policy_model, config.learner, self.device)
        self._vocab_size = int(policy_model.config.get_text_config().vocab_size)
        self._attention_tokens = attention_tokens(policy_model)
        if config.learner.gradient_checkpointing:
            policy_model.gradient_checkpointing_enable({"use_reentrant": False})
        self._eyes = Eyes.of(model.path, policy_model)
        if config.learner.freeze_vision:
            freeze_tower(policy_model)
        if lora is not None:
            add_adapters(policy_model, lora, seed=config.run.seed)
        self._sequence = self._share_rows(policy_model)
        policy = PolicyModule(
            policy_model,
            sequence=self._sequence,
            banned=vision_token_ids(model.path),
            logit_chunk_tokens=config.learner.logit_chunk_tokens,
            entropy_gradient=config.algorithm.entropy_coefficient > 0,
            value_head=config.algorithm.has_values,
        )
        universal = state is not None and needs_universal(state, ranks=world, zero_stage=config.learner.zero_stage)
        self.engine = TrainingEngine(
            policy,
            learner=config.learner,
            optim=config.optim,
            device=self.device,
            universal=universal,
            owner=config.run.name,
        )
        self._reference = self._load_reference(dtype)
        self._report: StepReport | None = None
        self._canary: list[float] | None = None
        self._sender: WeightSender | None = None
        self.policy_version = self._nonfinite = 0
        if checkpoint is not None and state is not None:
            if universal:
                with universal_checkpoint(checkpoint.path, _TAG) as converted:
                    self.engine.load(converted, _TAG)
            else:
                self.engine.load(checkpoint.path / "deepspeed", _TAG)
            self.policy_version, self._nonfinite = state.policy_version, state.nonfinite_in_row
        dist.barrier()
        self.clean = True
        give_back_cache(self.device)
        return self.policy_version

    def update(self, directory: Path, step: int) -> StepReport:
        """Trains on the scored rollouts of a step and holds version `step` + 1 afterwards.

        Nothing to train on is a counted no-op that gives a new version all the same. Raises `LearnerError` if the
        weights are not of version `step`, or when too many updates in a row were not finite.
        """
        if self.clean and self._report is not None and self._report.step == step:
            return self._report
        seconds = Seconds()
        with seconds.part("load"):
            groups = load_scored_groups(StepDirectory(directory))
        return self.update_from(groups, step, seconds, StepDirectory(directory))

    def update_from(
        self,
        groups: list[TrajectoryGroup],
        step: int,
        seconds: Seconds | None = None,
        directory: StepDirectory | None = None,
    ) -> StepReport:
        """`update` with the groups at hand. What it saw of every token is written to `directory`, if there is one."""
        if not self.clean or self.policy_version != step:
            state = f"version {self.policy_version}" if self.clean else "an update that failed half-way"
            raise LearnerError(
                f"cannot train step {step}: the learner holds {state}, it needs version {step}; "
                f"load the newest checkpoint and train the steps after it"
            )
        start = time.perf_counter()
        before = sum(seconds.by_part.values()) if seconds else 0.0
        seconds = seconds or Seconds()
        learner, optim = self.config.learner, self.config.optim
        with seconds.part("samples"):
            fresh, misfits = fresh_groups(groups, self.config, step), list[str]()
            if self._eyes is not None:
                fresh, misfits = self._eyes.fitting(fresh)
            for reason in misfits if self.rank == 0 else ():
                logger.warning("step %d: %s", step, reason)
            built = build_samples(fresh, self.config.algorithm)
        with seconds.part("pack"):
            plan = plan_step(
                built.samples,
                minibatches=optim.minibatches,
                world=self.world // learner.sequence_parallel,
                microbatch_tokens=learner.microbatch_tokens,
                attention_tokens=self._attention_tokens,
            )
        work = StepUpdate(
            engine=self.engine,
            reference=self._reference,
            config=self.config,
            rank=self.rank,
            world=self.world,
            nonfinite_in_row=self._nonfinite,
            eyes=self._eyes,
            seconds=seconds,
        )
        self.clean = False
        result = work.run(built, plan, step=step)
        metrics, report = result.metrics, result.samples.report
        if directory is not None and self.rank == 0:
            with seconds.part("record"):
                metrics["train/unrecorded_steps/count"] = float(not _record(directory, result))
        with seconds.part("canary"):
            self._canary = self.canary_logprobs(self.canary_token_ids, self.canary_images)
        self._nonfinite = work.nonfinite_in_row
        self.policy_version = step + 1
        total = before + time.perf_counter() - start
        work_seconds = sum(seconds.by_part[part] for part in ("forward_backward", "optimizer", "old_logprobs"))
        metrics |= (
            sample_metrics(report)
            | lag_metrics(built.samples, fresh, step)
            | {
                "train/stale_groups/count": float(len(groups) - len(fresh)),
                "train/misfit_trajectories/count": float(len(misfits)),
                "train/empty_updates/count": float(not plan.minibatches),
                "train/tokens_per_second/mean": report.tokens / work_seconds if work_seconds else 0.0,
            }
        )
        self._report = StepReport(
            step=step,
            policy_version=self.policy_version,
            metrics=finite_only(metrics),
            seconds={**seconds.by_part, "total": total},
            weights_digest=weights_digest(self._canary),
        )
        self.clean = True
        give_back_cache(self.device)
        return self._report

    @property
    def beats(self) -> int:
        """A number that moves while this rank computes; another thread may ask."""
        engine: TrainingEngine | None = getattr(self, "engine", None)
        return 0 if engine is None else engine.beats

    @property
    def canary_images(self) -> tuple[bytes, ...]:
        """The picture that the canary of a model that sees holds."""
        return () if self._eyes is None else (self._eyes.canary_picture,)

    @property
    def canary_token_ids(self) -> list[int]:
        """The tokens of the canary whose log-probs `weights_digest` hashes."""
        length = min(CANARY_TOKENS, self.config.rollout.context_length - 1)
        ids = canary_token_ids(self._vocab_size, length, without=vision_token_ids(self.model.path))
        return ids if self._eyes is None else self._eyes.show_canary(ids)

    def canary_logprobs(self, token_ids: list[int], images: Sequence[bytes] = ()) -> list[float]:
        """Log-prob of each token given those before it, at temperature 1 and with every token of the vocabulary; one
        fewer than tokens. Collective.

        images: encoded, in the order of their placeholders.
        """
        length = len(token_ids)
        if length < 2:
            raise LearnerError(f"a canary needs at least two tokens, got {length}")
        spans = () if self._eyes is None else self._eyes.spans(token_ids, images)
        sample = TrainingSample(
            trajectory_id="canary",
            token_ids=np.array(token_ids, np.int32),
            loss_mask=np.zeros(length, np.bool_),
            rollout_logprobs=np.zeros(length, np.float32),
            advantages=np.zeros(length, np.float32),
            images=spans,
            pictures={digest_of(image): image for image in images},
        )
        batch = replace(to_batch([sample]), loss_mask=np.arange(length) > 0, num_loss_tokens=length - 1)
        inputs = PolicyInputs(
            batch,
            self.device,
            self._eyes,
            whole_vocabulary=True,
            sequence_parallel=self.config.learner.sequence_parallel,
        )
        return self.engine.measure(inputs, 1.0)[0].tolist()

    def export_weights(self, path: Path, version: int) -> list[float]:
        """Rank 0 writes all weights as one safetensors file, as the engine loads them. Collective.

        Returns the log-probs of `canary_token_ids` under these weights, by which a reader can tell them.
        """
        self._require_version(version)
        weights = gather_weights(self.engine.policy.model, zero_stage=self.engine.zero_stage)
        if self.rank == 0:
            write_weights(path, weights, policy_version=version)
        return self._known_canary()

    def sender(self, version: int) -> WeightSender:
        """What sends the weights of `version`, the one that is held, from GPU to GPU."""
        self._require_version(version)
        if self._sender is None:
            self._sender = WeightSender(self.engine.policy.model, zero_stage=self.engine.zero_stage)
        return self._sender

    def export_adapter(self, path: Path, version: int) -> list[float]:
        """Rank 0 writes the adapters alone to the folder `path`, in peft's format. Collective.

        Returns what `export_weights` does. Raises `LearnerError` where no adapters are trained.
        """
        if self.config.learner.lora is None:
            raise LearnerError("there are no adapters: learner.lora is not set")
        self._require_version(version)
        weights = gather_adapter(self.engine.policy.model, zero_stage=self.engine.zero_stage)
        if self.rank == 0:
            self._write_adapter(path, weights, version)
        return self._known_canary()

    def begin_checkpoint(self, path: Path) -> None:
        """Copies everything that a resume needs to host memory, and has it written to `path` (its name is the version)
        in the background. Collective; `finish_checkpoint` tells how that went.

        An earlier one that is still being written is waited for first, and its error is raised. Raises `ShardError` if
        the disk has no room for it; nothing of it is left then.
        """
        if not self.clean:
            raise LearnerError("an update failed half-way; these weights are of no version and are not saved")
        with self._saving:
            self._saves.result(seconds=self.config.learner.update_timeout_seconds)
            try:
                with writing(path):
                    self._begin(path)
            except ShardError:
                shutil.rmtree(staging_directory(path), ignore_errors=True)
                raise
        give_back_cache(self.device)

    def finish_checkpoint(self, *, seconds: float) -> tuple[bool, CheckpointRef | None]:
        """Whether nothing is being written (after at most `seconds`), and what this rank has sealed since last asked.

        Raises what a save that was begun failed with, once. Another thread may call it, during an update too.
        """
        end = time.monotonic() + seconds
        if not self._saving.acquire(timeout=seconds):
            return False, None
        try:
            return True, self._saves.result(seconds=max(end - time.monotonic(), 0.0))
        except TimeoutError:
            return False, None
        finally:
            self._saving.release()

    def close(self) -> None:
        """Gives back the engine; the object cannot be used afterwards. The process stays a rank of its group."""
        self.clean = False
        if hasattr(self, "_saves"):
            self._saves.close()
        if hasattr(self, "engine"):
            self.engine.close()
            del self.engine

    def _require_version(self, version: int) -> None:
        if not self.clean or version != self.policy_version:
            raise LearnerError(f"version {version} was asked for, the learner holds version {self.policy_version}")

    def _known_canary(self) -> list[float]:
        """Collective."""
        if self._canary is None:
            self._canary = self.canary_logprobs(self.canary_token_ids, self.canary_images)
        dist.barrier()
        return self._canary

    def _write_adapter(self, path: Path, weights: dict[str, torch.Tensor], version: int) -> None:
        assert self.config.learner.lora is not None
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            files = adapter_files(self.engine.policy.model, self.config.learner.lora, self.model.path)
            for name, content in files.items():
                (path / name).write_bytes(content)
        write_weights(path / "adapter_model.safetensors", weights, policy_version=version)

    def _begin(self, path: Path) -> None:
        staging, lora = staging_directory(path), self.config.learner.lora
        if self.rank == 0:
            shutil.rmtree(staging, ignore_errors=True)
        weights: dict[str, torch.Tensor] = {}
        if lora is None or not self.config.checkpoint.adapters_only:
            weights = gather_weights(self.engine.policy.model, zero_stage=self.engine.zero_stage)
        self._require_space(path, weights)
        if self.rank == 0:
            staging.mkdir(parents=True)
        dist.barrier()
        files = self.engine.snapshot(staging / "deepspeed", _TAG)
        weights = host_copy(weights)
        adapter = {} if lora is None else gather_adapter(self.engine.policy.model, zero_stage=self.engine.zero_stage)
        state = self._state()

        def finish() -> CheckpointRef:
            copy_model_files(self.model.path, staging / "hf")
            if weights:
                write_weights(staging / "hf" / "model.safetensors", weights, policy_version=state.policy_version)
            if adapter:
                self._write_adapter(staging / "adapter", adapter, state.policy_version)
            return seal(path, state)

        self._saves.begin(path, files, finish if self.rank == 0 else None)

    def _require_space(self, path: Path, weights: dict[str, torch.Tensor]) -> None:
        """Collective, so that all ranks refuse together and none waits for the others."""
        own = size_of(self.engine.tensors()) + size_of(weights.values())
        free = free_bytes(path.parent) if self.rank == 0 else 0
        sums = torch.tensor([own, free], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        require_space(path, int(sums[0]), int(sums[1]))

    def _state(self) -> CheckpointState:
        learner = self.config.learner
        return CheckpointState(
            policy_version=self.policy_version,
            nonfinite_in_row=self._nonfinite,
            ranks=self.world,
            zero_stage=learner.zero_stage,
            dtype=learner.dtype,
            trained_with=training_identity(self.config, self.model),
        )

    def _check(self, checkpoint: CheckpointRef) -> CheckpointState:
        if self.rank == 0:  # one reader is enough; nobody loads before the first collective, which rank 0 enters later
            verify_checkpoint(checkpoint)
        state, learner = read_state(checkpoint.path), self.config.learner
        require_resumable(learner, checkpoint.path)
        wanted = (self.world, learner.zero_stage, learner.dtype)
        if (state.ranks, state.zero_stage, state.dtype) != wanted:
            possible = can_reshape(state, zero_stage=learner.zero_stage, dtype=learner.dtype)
            if not (possible and learner.allow_reshape):
                convert = ", set learner.allow_reshape=true to have it converted" if possible else ""
                raise LearnerError(
                    f"{checkpoint.path} was written by {state.ranks} rank(s), ZeRO {state.zero_stage}, {state.dtype}; "
                    f"the config asks for {wanted[0]} rank(s), ZeRO {wanted[1]}, {wanted[2]}. Go on with the "
                    f"former{convert}, or start a new run from {checkpoint.path / 'hf'}"
                )
        if found := differences(state.trained_with, training_identity(self.config, self.model)):
            raise LearnerError(
                f"{checkpoint.path} was written under another config: {'; '.join(found)}. Go on with the former, or "
                f"start a new run from {checkpoint.path / 'hf'}"
            )
        return state

    def _share_rows(self, model: PreTrainedModel) -> SequenceGroup | None:
        size = self.config.learner.sequence_parallel
        if size == 1:
            return None
        if self._eyes is not None:
            raise ConfigError("learner.sequence_parallel: rows with pictures cannot be shared by ranks; set it to 1")
        return SequenceGroup(model, size=size)

    def _load_reference(self, dtype: torch.dtype) -> Reference | None:
        """The starting policy, frozen; only if the KL penalty is on.

        With adapters it is the policy without them, else a second model, whole on every rank.
        """
        if self.config.algorithm.kl.coefficient == 0:
            return None
        if self.config.learner.lora is not None:
            return self._measure_base
        model = load_policy(self.model.path, dtype).eval().requires_grad_(False)
        return PolicyModule(
            model,
            logit_chunk_tokens=self.config.learner.logit_chunk_tokens,
            banned=vision_token_ids(self.model.path),
            sequence=self._sequence,
        ).to(self.device)

    def _measure_base(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with without_adapters(self.engine.policy.model):
            return self.engine.measure(*arguments)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _record(directory: StepDirectory, result: StepResult) -> bool:
    """Leaves what the update saw of every token for the viewer. A disk that refuses costs the picture, not the step."""
    try:
        write_learned(directory, result.samples.samples, old_logprobs=result.old_logprobs, logprobs=result.logprobs)
    except ShardError as error:
        logger.warning("what the update saw of each token is not kept: %s", error)
        return False
    return True
