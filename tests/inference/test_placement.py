"""Engines and ranks get GPUs of their own, or share them; what cannot be is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.configs import RunConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.inference.placement import Placement, place

Configured = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def configured(engine_config) -> Configured:
    """`configured(ranks, learner_device=, **inference)`."""

    def make(ranks: int, learner_device: str = "cuda", **inference) -> RunConfig:
        base = engine_config(**{"device": "cuda", **inference})
        learner = base.learner.model_copy(update={"ranks": ranks, "device": learner_device})
        return base.model_copy(update={"learner": learner})

    return make


def seats(placement: Placement) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """GPUs of the engines, and of the ranks."""
    return (
        [placement.gpus_of_engine(number) for number in range(len(placement.engines))],
        [placement.gpus_of_rank(number) for number in range(len(placement.ranks))],
    )


def test_split_gives_everyone_gpus_of_their_own(configured):
    found = place(configured(4, replicas=2, tensor_parallel=2), 8)
    assert (found.kind, found.sleeps) == ("split", False)
    assert seats(found) == ([(0, 1), (2, 3)], [(4,), (5,), (6,), (7,)])
    assert (found.engine_gpus, found.rank_gpus) == (2, 1)


def test_colocated_lays_engines_over_the_ranks_and_lets_them_sleep(configured):
    found = place(configured(8, replicas=4, tensor_parallel=2, placement="colocated"), 8)
    assert (found.kind, found.sleeps) == ("colocated", True)
    assert seats(found) == ([(0, 1), (2, 3), (4, 5), (6, 7)], [(rank,) for rank in range(8)])
    assert [bundle.cpus for bundle in found.bundles] == [2, 1] * 4


def test_auto_shares_only_where_there_are_too_few(configured):
    assert place(configured(4, replicas=4), 8).kind == "split"
    assert place(configured(4, replicas=4), 7).kind == "colocated"
    assert place(configured(1), 1).kind == "colocated"


def test_without_gpus_there_is_nothing_to_place(configured):
    assert place(configured(2, "auto", device="auto"), 0) == Placement(kind="cpu")
    assert place(configured(2, "cpu", device="cpu", placement="colocated"), 8) == Placement(kind="cpu")


def test_a_flow_without_a_learner_asks_for_engines_alone(configured):
    config = configured(8, replicas=2, tensor_parallel=2, placement="colocated", weight_transfer="ipc")
    alone = place(config, 4, learner=False)
    assert (alone.kind, alone.transfer, seats(alone)) == ("split", "file", ([(0, 1), (2, 3)], []))
    with pytest.raises(ConfigError, match=r"replicas=2 of inference\.tensor_parallel=2 need 4 GPUs, the cluster has 3"):
        place(config, 3, learner=False)
    assert place(configured(8, "auto", device="auto"), 0, learner=False) == Placement(kind="cpu")


def test_one_side_alone_may_have_gpus(configured):
    assert seats(place(configured(2, device="cpu"), 2)) == ([], [(0,), (1,)])
    assert seats(place(configured(2, "cpu", replicas=2), 2)) == ([(0,), (1,)], [])


@pytest.mark.parametrize(
    ("ranks", "gpus", "inference", "message"),
    [
        (4, 6, {"tensor_parallel": 4, "placement": "split"}, r"need 8 GPUs, or 4 if they share them.*cluster has 6"),
        (4, 3, {"replicas": 2}, r"learner\.ranks=4 and inference\.replicas=2 .* need 6 GPUs, or 4 .* has 3"),
        (2, 3, {"replicas": 4, "placement": "colocated"}, r"on the same GPUs need 4 GPUs, the cluster has 3"),
        (2, 1, {"device": "cpu"}, r"learner\.ranks=2 need 2 GPUs, the cluster has 1"),
        (2, 4, {"device": "cpu", "placement": "colocated"}, r"one of them runs on the CPU"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_keys_to_change(configured, ranks, gpus, inference, message):
    with pytest.raises(ConfigError, match=message):
        place(configured(ranks, **inference), gpus)


@given(
    ranks=st.integers(1, 8),
    replicas=st.integers(1, 4),
    wide=st.integers(1, 4),
    gpus=st.integers(1, 16),
    kind=st.sampled_from(["auto", "split", "colocated"]),
)
def test_no_two_ranks_and_no_two_engines_ever_share_a_gpu(configured, ranks, replicas, wide, gpus, kind):
    config = configured(ranks, replicas=replicas, tensor_parallel=wide, placement=kind)
    try:
        found = place(config, gpus)
    except ConfigError:
        assert gpus < (ranks + replicas * wide if kind == "split" else max(ranks, replicas * wide))
        return
    engines, singles = ([gpu for seat in side for gpu in seat] for side in seats(found))
    assert len(set(engines)) == len(engines) == replicas * wide
    assert len(set(singles)) == len(singles) == ranks
    assert max(engines + singles) < sum(bundle.gpus for bundle in found.bundles) <= gpus
    if found.kind == "split":
        assert not set(engines) & set(singles)


def test_weights_go_by_file_unless_gpus_are_asked_for_and_can(configured):
    assert place(configured(4, replicas=4), 8).transfer == "file"
    assert place(configured(4, replicas=4, weight_transfer="nccl"), 8).transfer == "nccl"
    assert place(configured(2, replicas=2, weight_transfer="ipc", placement="colocated"), 2).transfer == "ipc"


@pytest.mark.parametrize(
    ("ranks", "gpus", "inference", "message"),
    [
        (1, 0, {"device": "auto", "weight_transfer": "nccl"}, r"from GPU to GPU, but .* run on the CPU"),
        (2, 2, {"replicas": 2, "weight_transfer": "nccl", "placement": "colocated"}, r"NCCL refuses two processes"),
        (1, 3, {"replicas": 2, "weight_transfer": "ipc"}, r"2 GPUs of engines have no rank"),
    ],
)
def test_a_transfer_that_cannot_be_is_refused(configured, ranks, gpus, inference, message):
    device = "cuda" if gpus else "auto"
    with pytest.raises(ConfigError, match=message):
        place(configured(ranks, device, **inference), gpus)


def test_engines_that_must_sleep_cannot_collect_during_updates(configured):
    config = configured(1)
    late = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_policy_lag": 1})})
    with pytest.raises(ConfigError, match=r"max_policy_lag=1 collects during updates"):
        place(late, 1)
    assert place(late, 2).kind == "split"
