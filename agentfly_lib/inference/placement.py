"""Who gets which GPU: engines and learner ranks with GPUs of their own (`split`), or on the same ones (`colocated`).

The GPUs of a run are one placement group of Ray, so that it gets all of them or waits for all of them, and no two parts
meet on a GPU by chance. Split: one bundle of `tensor_parallel` GPUs for each engine, one of a single GPU for each rank.
Colocated: one bundle for each GPU, ranks and engines both from the first one on; engines sleep while the learner
computes. Pure arithmetic; `agentfly_lib.cluster` makes the group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from agentfly_lib.cluster import Bundle
from agentfly_lib.configs.run import RunConfig
from agentfly_lib.errors import ConfigError

__all__ = ["Placement", "place", "serves_adapters"]

_RANK_SHARE = 0.5
_ENGINE_SHARE = 0.4
"""Parts of a shared GPU that Ray counts; they only keep a second rank or engine away, memory is not divided by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where everything of a run goes."""

    kind: Literal["cpu", "split", "colocated"]
    bundles: tuple[Bundle, ...] = ()
    """Of the placement group, with one processor for each part in them; without GPUs there is no group."""
    engines: tuple[tuple[int, ...], ...] = ()
    """Bundles of each engine; empty where engines run on CPUs."""
    ranks: tuple[int, ...] = ()
    """Bundle of each rank; empty where ranks run on CPUs."""
    engine_gpus: float = 0.0
    """GPUs that an engine claims of Ray in its first bundle. 0 with bundles: it is told its GPUs by number."""
    rank_gpus: float = 0.0
    transfer: Literal["file", "nccl", "ipc"] = "file"
    """How weights reach the engines."""

    @property
    def sleeps(self) -> bool:
        """Engines sleep while the learner computes."""
        return self.kind == "colocated"

    def gpus_of_engine(self, engine: int) -> tuple[int, ...]:
        """GPUs of an engine, counted through the bundles; which card each is, Ray decides."""
        return tuple(gpu for bundle in self.engines[engine] for gpu in self._gpus(bundle)) if self.engines else ()

    def gpus_of_rank(self, rank: int) -> tuple[int, ...]:
        """The GPU of a rank, counted the same way."""
        return self._gpus(self.ranks[rank]) if self.ranks else ()

    def _gpus(self, bundle: int) -> tuple[int, ...]:
        first = sum(each.gpus for each in self.bundles[:bundle])
        return tuple(range(first, first + self.bundles[bundle].gpus))


def place(config: RunConfig, gpus: int, *, learner: bool = True) -> Placement:
    """The placement of a run where the cluster has `gpus` GPUs in all; `auto` shares them only if it must.

    learner: whether there is one; flows that only generate have engines alone.

    Raises `ConfigError` if they are too few, or if what is asked for cannot be there.
    """
    placement = _seats(config, gpus) if learner else _engines_alone(config, gpus)
    if placement.sleeps and config.rollout.max_policy_lag:
        raise ConfigError(
            f"rollout.max_policy_lag={config.rollout.max_policy_lag} collects during updates, for which engines that "
            "share GPUs with the learner must sleep; set it to 0, or give both GPUs of their own "
            "(inference.placement='split')"
        )
    return replace(placement, transfer=_transfer(config, placement)) if learner else placement


def serves_adapters(config: RunConfig) -> bool:
    """Whether engines add the learner's adapters to the starting weights, instead of being given merged ones."""
    return config.learner.lora is not None and config.inference.lora_sync == "adapter"


def _transfer(config: RunConfig, placement: Placement) -> Literal["file", "nccl", "ipc"]:
    asked = config.inference.weight_transfer
    if asked in ("auto", "file"):
        return "file"
    if not (placement.engines and placement.ranks):
        raise ConfigError(
            f"inference.weight_transfer={asked!r} goes from GPU to GPU, but engines or learner run on the CPU here; "
            "set it to 'file'"
        )
    if serves_adapters(config):
        raise ConfigError(f"inference.lora_sync='adapter' sends files; leave inference.weight_transfer={asked!r} out")
    if asked == "nccl" and placement.kind == "colocated":
        raise ConfigError(
            "inference.weight_transfer='nccl': NCCL refuses two processes on one GPU, which placement 'colocated' "
            "makes; set it to 'ipc', or inference.placement to 'split'"
        )
    if asked == "ipc":
        ranked = {gpu for rank in range(len(placement.ranks)) for gpu in placement.gpus_of_rank(rank)}
        served = {gpu for engine in range(len(placement.engines)) for gpu in placement.gpus_of_engine(engine)}
        if not served <= ranked:
            raise ConfigError(
                f"inference.weight_transfer='ipc' opens a rank's memory on the engine's own GPU, but "
                f"{len(served - ranked)} GPUs of engines have no rank; set it to 'nccl' or 'file', or "
                "inference.placement to 'colocated' with as many ranks as the engines have GPUs"
            )
    return asked


def _seats(config: RunConfig, gpus: int) -> Placement:
    learner, inference = config.learner, config.inference
    on_gpu = {"cpu": False, "cuda": True, "auto": gpus > 0}
    ranks = learner.ranks if on_gpu[learner.device] else 0
    wide = inference.tensor_parallel
    engines = inference.replicas if on_gpu[inference.device] else 0
    if inference.placement == "colocated" and not (ranks and engines):
        if ranks or engines:
            raise ConfigError(
                "inference.placement='colocated' shares GPUs between engines and learner, but one of them runs on the "
                "CPU; set inference.device and learner.device to 'cuda', or leave inference.placement out"
            )
        return Placement(kind="cpu")
    if not ranks and not engines:
        return Placement(kind="cpu")
    apart, together = ranks + engines * wide, max(ranks, engines * wide)
    shared = inference.placement == "colocated" or (
        inference.placement == "auto" and apart > gpus and bool(ranks and engines)
    )
    if (together if shared else apart) > gpus:
        raise ConfigError(_too_few(ranks, engines, wide, gpus, asked=inference.placement))
    if shared:
        return Placement(
            kind="colocated",
            bundles=tuple(
                Bundle(1, (gpu < ranks) + (gpu % wide == 0 and gpu < engines * wide)) for gpu in range(together)
            ),
            engines=tuple(tuple(range(number * wide, (number + 1) * wide)) for number in range(engines)),
            ranks=tuple(range(ranks)),
            engine_gpus=_ENGINE_SHARE if wide == 1 else 0.0,
            rank_gpus=_RANK_SHARE,
        )
    return _split(engines, wide, ranks=ranks)


def _engines_alone(config: RunConfig, gpus: int) -> Placement:
    inference = config.inference
    engines = inference.replicas if inference.device == "cuda" or (inference.device == "auto" and gpus) else 0
    if engines * inference.tensor_parallel > gpus:
        raise ConfigError(_too_few(0, engines, inference.tensor_parallel, gpus, asked="split"))
    if not engines:
        return Placement(kind="cpu")
    return _split(engines, inference.tensor_parallel, ranks=0)


def _split(engines: int, wide: int, *, ranks: int) -> Placement:
    return Placement(
        kind="split",
        bundles=(Bundle(wide, 1),) * engines + (Bundle(1, 1),) * ranks,
        engines=tuple((number,) for number in range(engines)),
        ranks=tuple(range(engines, engines + ranks)),
        engine_gpus=float(wide) if engines else 0.0,
        rank_gpus=1.0 if ranks else 0.0,
    )


def _too_few(ranks: int, engines: int, wide: int, gpus: int, *, asked: str) -> str:
    needs = []
    if ranks:
        needs.append(f"learner.ranks={ranks}")
    if engines:
        needs.append(f"inference.replicas={engines} of inference.tensor_parallel={wide}")
    apart, together = ranks + engines * wide, max(ranks, engines * wide)
    shared = f", or {together} if they share them (inference.placement='colocated')" if ranks and engines else ""
    if asked == "colocated":
        return f"{' and '.join(needs)} on the same GPUs need {together} GPUs, the cluster has {gpus}; lower one of them"
    return f"{' and '.join(needs)} need {apart} GPUs{shared}, the cluster has {gpus}; lower one of them"
