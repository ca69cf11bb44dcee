"""DeepSpeed, set up so that one optimizer update is exactly one update of the global batch.

What is special here, and why:

- The number of micro-batches varies from update to update, so the accumulation boundary is set by hand and DeepSpeed's
  own scaling by accumulation steps is off: the loss is already divided by the global number of trained tokens.
- The optimizer is torch's fused AdamW, on CPUs too (where state is offloaded): DeepSpeed's own would compile a C++
  extension for minutes.
- `GuardedAdamW` refuses a step whose gradient is not finite on any rank, whatever the ZeRO stage does about it.
- The gradient norm is computed here for stage 0, where DeepSpeed reports none.
- At stage 3 each weight is dealt out to the ranks as soon as it reaches the GPU; handed an ordinary module, DeepSpeed
  would first move all of it there.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import math
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from agentfly_lib.cluster import private_folder
from agentfly_lib.configs import LearnerConfig, OffloadConfig, OptimConfig
from agentfly_lib.errors import ConfigError, LearnerError
from agentfly_lib.training.identity import extensions_directory
from agentfly_lib.training.policy import PolicyModule
from agentfly_lib.training.saving import Files, captured

__all__ = ["GuardedAdamW", "TrainingEngine", "give_back_cache", "join_process_group"]

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
REDUCE_BUCKET = 500_000_000
"""Gradients that are exchanged together, at most; DeepSpeed's own default, which it would reserve for small models too.
"""


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that skips a step, on all ranks alike, if `veto` is set or any rank's gradient is not finite."""

    ranks_on = torch.device("cpu")
    """Where ranks talk; parameters lie elsewhere if they are offloaded."""
    veto: bool = False
    skipped: bool = False
    """Whether any call of `step` since the last `arm` was skipped."""

    def arm(self, *, veto: bool) -> None:
        """Call before the engine's step."""
        self.veto, self.skipped = veto, False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self.veto or not _finite_everywhere(gradients, self.ranks_on):
            self.skipped = True
            return None
        return super().step(closure)


class TrainingEngine:
    """A DeepSpeed engine around the policy: accumulate gradients over micro-batches, then one guarded step."""

    def __init__(
        self,
        policy: PolicyModule,
        *,
        learner: LearnerConfig,
        optim: OptimConfig,
        device: torch.device,
        universal: bool = False,
        owner: str = "learner",
    ) -> None:
        """`universal`: `load` will read what `reshape.universal_checkpoint` has made. `owner` begins the name of the
        folder for what is offloaded to a disk."""
        self._closing = ExitStack()
        offload = learner.offload
        if offload.nvme:
            _require_async_io()
            offload = offload.model_copy(update={"nvme_path": _swap(self._closing, offload, owner)})
        import deepspeed

        config = _deepspeed_config(learner, optim, policy, offload=offload, universal=universal)
        if learner.zero_stage == 3:
            for parameter in policy.parameters():
                parameter.data = parameter.data.to(getattr(torch, learner.dtype))
            deepspeed.zero.Init(module=policy, config_dict_or_path=config)
            policy.to(device)  # buffers; of its parameters nothing is left outside of a forward pass
        self.device = device
        self.zero_stage = learner.zero_stage
        self._partly_frozen = any(not parameter.requires_grad for parameter in policy.parameters())
        self.optimizer = GuardedAdamW(
            [parameter for parameter in policy.parameters() if parameter.requires_grad],
            lr=optim.lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.optimizer.ranks_on = device
        self._policy = policy
        if self._partly_frozen:  # DeepSpeed alone would leave in what is tied
            policy.register_state_dict_post_hook(_without_frozen)
        # Any: which optimizer class stands there depends on stage and type, and the stubs know only some.
        self.deepspeed: Any = deepspeed.initialize(model=policy, optimizer=self.optimizer, config=config)[0]
        self.deepspeed.train()  # models come in the other mode, in which none recomputes its activations
        self._reports_norm = self.deepspeed.optimizer is not self.optimizer
        self._norm = 0.0
        self.beats = 0
        """Passes and steps so far, whatever for: it moves as long as this rank computes something."""

    @property
    def policy(self) -> PolicyModule:
        """The module, without DeepSpeed around it. Under ZeRO 3 its parameters are empty outside of a forward pass."""
        return self._policy

    def forward(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probs with a graph, entropies and values; see `PolicyModule`."""
        self.beats += 1
        return self.deepspeed(*arguments)

    @torch.no_grad()
    def measure(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same without a graph."""
        self.beats += 1
        self.deepspeed.eval()
        try:
            return self.deepspeed(*arguments)
        finally:
            self.deepspeed.train()

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Adds the loss's gradient; `last` marks the update's last micro-batch, where ranks exchange gradients."""
        self.deepspeed.backward(loss, scale_wrt_gas=False)
        if last and not self._reports_norm:
            self._norm = _total_norm(self._policy.parameters())

    def begin(self, *, last: bool) -> None:
        """Call before each micro-batch's forward pass."""
        self.deepspeed.set_gradient_accumulation_boundary(last)

    def step(self, rate: float, *, veto: bool) -> tuple[bool, float]:
        """Clips and updates. Returns (whether it was applied, norm of the gradient before clipping)."""
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.arm(veto=veto)
        self.beats += 1
        self.deepspeed.step()
        norm = self.deepspeed.get_global_grad_norm() if self._reports_norm else self._norm
        applied = self.deepspeed.was_step_applied() and not self.optimizer.skipped
        return applied, float("nan") if norm is None else float(norm)

    def snapshot(self, directory: Path, tag: str) -> Files:
        """Collective: copies of this rank's share of the training state, and where they are to be written.

        Frozen weights are no part of it.
        """
        with captured(self.deepspeed) as files:
            self.deepspeed.save_checkpoint(
                str(directory), tag=tag, save_latest=False, exclude_frozen_parameters=self._partly_frozen
            )
        return files

    def load(self, directory: Path, tag: str) -> None:
        """Collective: the counterpart of `snapshot`, for the same ranks and ZeRO stage unless it is universal."""
        self.deepspeed.load_checkpoint(str(directory), tag=tag, load_module_strict=not self._partly_frozen)

    def tensors(self) -> Iterator[torch.Tensor]:
        """What is saved of this rank, each tensor once: its share of the optimizer's copies of weights, and of its
        state. The first rank alone saves weights, and at stage 0, where all hold the same, everything."""
        groups = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        states = (value for state in self.optimizer.state.values() for value in state.values())
        trained = (parameter for parameter in self._policy.parameters() if parameter.requires_grad)
        parts = [trained, groups, states] if dist.get_rank() == 0 else [groups, states] if self.zero_stage else []
        seen: set[int] = set()
        for value in itertools.chain(*parts):
            if isinstance(value, torch.Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield value

    def close(self) -> None:
        """Gives back what DeepSpeed registered (hooks, buffers), and removes what it keeps on a disk."""
        self.deepspeed.destroy()
        self._closing.close()


def give_back_cache(device: torch.device) -> None:
    """Of a GPU, what torch keeps for its next allocations: an engine may share the card, and is about to work."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def join_process_group(*, rank: int, world: int, address: str, port: int, device: torch.device) -> None:
    """Makes this process one of `world` ranks. Collective.

    Nothing listens beyond `address`, nor beyond this machine if that is a loopback address; gloo does not either if
    there is one rank.
    Once per process: DeepSpeed keeps references to the first group for good. A second call with the same rank and
    world is content with the group that there is; another one raises `LearnerError`.
    """
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (rank, world):
            raise LearnerError(
                f"this process is rank {dist.get_rank()} of {dist.get_world_size()} already and cannot become "
                f"rank {rank} of {world}; use a new process"
            )
        return
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
    if "TORCH_EXTENSIONS_DIR" not in os.environ:
        os.environ["TORCH_EXTENSIONS_DIR"] = str(extensions_directory())
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # The shared-memory transport would be compiled on first use, for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # type: ignore[attr-defined]
    loopback = ipaddress.ip_address(address).is_loopback
    if world == 1 or loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if loopback:  # else engines on other machines may be waiting for weights over NCCL, of a single rank too
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=_store(rank=rank, world=world, address=address, port=port),
        rank=rank,
        world_size=world,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=torch.device("cuda", 0) if device.type == "cuda" and world > 1 else None,
    )
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, timeout=COLLECTIVE_TIMEOUT)


def _store(*, rank: int, world: int, address: str, port: int) -> Store:
    """Where the ranks find each other. Rank 0 serves it on `address` alone: torch itself would listen on every one."""
    if world == 1:
        return HashStore()
    listener = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=max(128, 2 * world)).detach()
    return TCPStore(address, port, world, is_master=rank == 0, timeout=COLLECTIVE_TIMEOUT, master_listen_fd=listener)


def _deepspeed_config(
    learner: LearnerConfig, optim: OptimConfig, policy: torch.nn.Module, *, offload: OffloadConfig, universal: bool
) -> dict[str, Any]:
    trained = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": optim.max_grad_norm,
        "zero_optimization": {
            "stage": learner.zero_stage,
            "reduce_bucket_size": min(REDUCE_BUCKET, trained),
            **_offload(offload, policy),
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "checkpoint": {"load_universal": universal},
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }
    if learner.dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
        if learner.zero_stage:  # else it has no sums in float32 for gradients in bfloat16
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def _offload(offload: OffloadConfig, policy: torch.nn.Module) -> dict[str, Any]:
    places = {"offload_optimizer": offload.optimizer, "offload_param": offload.parameters}
    folder = {"nvme_path": str(offload.nvme_path)} if offload.nvme else {}
    found: dict[str, Any] = {key: {"device": device, **folder} for key, device in places.items() if device != "none"}
    if offload.parameters == "nvme":  # each rank's share of a weight must fit into a buffer
        largest = max(parameter.numel() for parameter in policy.parameters())
        found["offload_param"]["buffer_size"] = math.ceil(largest / dist.get_world_size())
    return found


def _swap(closing: ExitStack, offload: OffloadConfig, owner: str) -> Path:
    """A folder on the disk that no other learner knows: DeepSpeed's own names in it are the same for all of them.

    It goes with `closing` or, through a watchdog, with this process. Raises `ConfigError` if it cannot be made.
    """
    assert offload.nvme_path is not None
    try:
        offload.nvme_path.mkdir(parents=True, exist_ok=True)
        return closing.enter_context(private_folder(offload.nvme_path.resolve(), prefix=f"agentfly-{owner}-"))
    except OSError as error:
        raise ConfigError(f"learner.offload.nvme_path={offload.nvme_path} cannot be used: {error.strerror}") from error


def _require_async_io() -> None:
    """Raises `ConfigError` if DeepSpeed cannot read and write files in the background."""
    from deepspeed.ops.op_builder import AsyncIOBuilder  # pyright: ignore[reportAttributeAccessIssue]

    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise ConfigError(
            "learner.offload to nvme needs the library libaio with its headers and a C++ compiler, which this machine "
            'lacks (apt install libaio-dev g++); or set learner.offload.optimizer and parameters to "cpu"'
        )


def _without_frozen(module: torch.nn.Module, state: dict[str, Any], prefix: str, _metadata: dict[str, Any]) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            state.pop(prefix + name, None)


def _finite_everywhere(gradients: list[torch.Tensor], device: torch.device) -> bool:
    bad = torch.zeros(1, device=device)
    if gradients and not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))):
        bad += 1
    dist.all_reduce(bad)
    return not bool(bad)


def _total_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
