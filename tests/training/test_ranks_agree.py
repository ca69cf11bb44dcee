"""Real processes that talk over gloo: any number of ranks and any ZeRO stage train the same policy."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.slow]

pytest.importorskip("torch")
import torch  # noqa: E402

pytest.importorskip("deepspeed")
from safetensors.torch import load_file  # noqa: E402

Weights = dict[str, torch.Tensor]
Train = Callable[..., tuple[list[dict[str, Any]], Weights]]

GRADIENT = {"lr": 1.0, "eps": 1.0, "minibatches": 2}
"""The first AdamW step is then a smooth function of the gradient, so equal weights mean equal gradients."""
SMOOTH = {"lr": 1e-2, "eps": 1e-3, "minibatches": 2}
"""For several steps: eps is far above the rounding of small gradients, which AdamW would make into whole steps."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process whose forks are the ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {"OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(folder)}
    with (folder / "errors").open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_program.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )
        try:
            yield server
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # the ranks too
            server.wait()


def answer(server: subprocess.Popen[str], seconds: float) -> list[int]:
    assert server.stdout is not None
    assert select.select([server.stdout], [], [], seconds)[0], f"the ranks took longer than {seconds:.0f} s"
    line = server.stdout.readline()
    while line and not line.startswith("["):  # what libraries print on import
        line = server.stdout.readline()
    return json.loads(line)


@pytest.fixture
def train(
    ranks: subprocess.Popen[str],
    tmp_path: Path,
    tiny_model: Path,
    factories: ModuleType,
    free_port: Callable[[], int],
) -> Train:
    """Runs a learner of `world` processes over some steps; returns the reports of rank 0 and the final weights."""
    count = 0

    def run(
        *,
        world: int,
        steps: list[int],
        groups: dict[str, int] | None = None,
        model: Path = tiny_model,
        shapes: list[list[int]] | None = None,
        checkpoint: dict[str, Any] | None = None,
        save_after: int | None = None,
        save_to: Path | None = None,
        poison: tuple[int, list[str]] | None = None,
        **sections: dict[str, Any],
    ) -> tuple[list[dict[str, Any]], Weights]:
        nonlocal count
        count += 1
        port = free_port()
        sections["learner"] = {"ranks": world} | sections.get("learner", {})
        config = factories.run_config(**sections).model_dump(mode="json")
        specs = []
        folder = tmp_path / f"run-{count}"
        folder.mkdir()
        for rank in range(world):
            spec = {
                "rank": rank,
                "world": world,
                "port": port,
                "config": config,
                "model": str(model),
                "shapes": shapes,
                "checkpoint": checkpoint,
                "steps": steps,
                "groups": groups or {},
                "save_after": save_after,
                "save_to": str(save_to),
                "poisoned_rank": poison[0] if poison else None,
                "poison": poison[1] if poison else None,
                "weights": str(folder / "weights.safetensors"),
                "reports": str(folder / f"reports-{rank}.json"),
            }
            path = folder / f"spec-{rank}.json"
            path.write_text(json.dumps(spec))
            specs.append(str(path))
        assert ranks.stdin is not None
        ranks.stdin.write(json.dumps(specs) + "\n")
        ranks.stdin.flush()
        for rank, status in enumerate(answer(ranks, 240)):
            assert status == 0, (folder / f"spec-{rank}.log").read_text()[-3000:]
        reports = [json.loads((folder / f"reports-{rank}.json").read_text()) for rank in range(world)]
        digests = [[report["weights_digest"] for report in of_rank] for of_rank in reports]
        assert all(other == digests[0] for other in digests), "the ranks hold different weights"
        return reports[0], load_file(folder / "weights.safetensors")

    return run


def difference(one: Weights, other: Weights) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.timeout(600)
def test_two_ranks_equal_one_in_every_zero_stage(train: Train) -> None:
    one_reports, one = train(world=1, steps=[0], optim=GRADIENT)
    for stage in (0, 1, 2, 3):
        reports, weights = train(world=2, steps=[0], optim=GRADIENT, learner={"zero_stage": stage})
        assert difference(one, weights) < 5e-6, f"ZeRO {stage}"
        for name, value in one_reports[0]["metrics"].items():
            if name.split("/")[1] not in {"microbatches", "idle", "padding", "attention_padding", "tokens_per_second"}:
                assert reports[0]["metrics"][name] == pytest.approx(value, rel=2e-4, abs=1e-6), f"ZeRO {stage}: {name}"


@dataclass(frozen=True)
class Whole:
    """Five steps without a break, and the checkpoint of version 2 that was saved on the way."""

    reports: list[dict[str, Any]]
    weights: Weights
    path: Path

    @property
    def checkpoint(self) -> dict[str, Any]:
        return json.loads(Path(f"{self.path}.json").read_text())


FIVE = [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def trained() -> dict[tuple[int, int], Whole]:
    """By ranks and ZeRO stage: who needs what another test has trained, trains nothing."""
    return {}


@pytest.fixture
def whole(
    train: Train, trained: dict[tuple[int, int], Whole], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, int], Whole]:
    """`whole(world, stage)`, trained once."""

    def run(world: int, stage: int) -> Whole:
        if (world, stage) not in trained:
            path = tmp_path_factory.mktemp("checkpoints") / "000002"
            options = {"save_after": 1, "save_to": path, "optim": SMOOTH, "learner": {"zero_stage": stage}}
            reports, weights = train(world=world, steps=FIVE, **options)
            trained[world, stage] = Whole(reports, weights, path)
        return trained[world, stage]

    return run


@pytest.mark.timeout(600)
def test_every_zero_stage_has_the_same_weights_after_five_steps(
    train: Train, whole: Callable[[int, int], Whole]
) -> None:
    one_reports, one = train(world=1, steps=FIVE, optim=SMOOTH)
    for stage in (0, 1, 2, 3):
        two = whole(2, stage)
        assert difference(one, two.weights) < 1e-5, f"ZeRO {stage}"
        losses = [report["metrics"]["train/policy_loss/mean"] for report in two.reports]
        expected = [report["metrics"]["train/policy_loss/mean"] for report in one_reports]
        assert losses == pytest.approx(expected, rel=1e-4, abs=1e-6), f"ZeRO {stage}"


@pytest.mark.timeout(600)
def test_four_ranks_equal_one_and_two_go_on_from_them(train: Train, tmp_path: Path) -> None:
    """Flat partitions that do not divide evenly; and rows that two ranks share each, two at a time."""
    path = tmp_path / "checkpoints" / "000002"
    _, one = train(world=1, steps=[0, 1, 2], optim=SMOOTH)
    _, four = train(world=4, steps=[0, 1, 2], save_after=1, save_to=path, optim=SMOOTH, learner={"zero_stage": 2})
    assert difference(one, four) < 1e-5
    shared = {"zero_stage": 3, "sequence_parallel": 2}
    _, twice_two = train(world=4, steps=[0, 1, 2], optim=SMOOTH, learner=shared)
    assert difference(one, twice_two) < 1e-5
    _, resumed = train(
        world=2,
        steps=[2],
        checkpoint=json.loads(Path(f"{path}.json").read_text()),
        optim=SMOOTH,
        learner={"zero_stage": 2, "allow_reshape": True},
    )
    assert difference(one, resumed) < 1e-5


@pytest.mark.timeout(600)
def test_what_is_not_finite_on_one_rank_is_skipped_on_both(train: Train, tiny_model: Path) -> None:
    start = load_file(tiny_model / "model.safetensors")
    for stage, dtype in ((0, "float32"), (1, "bfloat16"), (2, "float32"), (3, "bfloat16")):
        learner = {"zero_stage": stage, "dtype": dtype}
        reports, weights = train(world=2, steps=[0, 1], poison=(1, ["loss", "gradient"]), learner=learner)
        skipped = [report["metrics"]["train/skipped_updates/count"] for report in reports]
        assert skipped == [1, 1], f"ZeRO {stage}"
        assert all(torch.equal(weights[name], start[name].to(weights[name].dtype)) for name in start), f"ZeRO {stage}"


@pytest.mark.timeout(300)
def test_what_is_defined_on_the_whole_step_is_the_same_on_two_ranks(train: Train) -> None:
    """Whitening, values, a penalty in the reward, and ratios of trajectories that micro-batches tear apart."""
    algorithm = {
        "advantage": {"type": "gae"},
        "loss": {"type": "gspo", "clip_low": 0.5, "clip_high": 0.5},
        "kl": {"coefficient": 0.05, "place": "reward"},
        "correction": {"type": "mask_sequence", "limit": 50.0},
    }
    tight = {"microbatch_tokens": 32}
    _, one = train(world=1, steps=[0, 1], optim=GRADIENT, algorithm=algorithm, learner=tight)
    _, two = train(world=2, steps=[0, 1], optim=GRADIENT, algorithm=algorithm, learner=tight | {"zero_stage": 3})
    assert difference(one, two) < 2e-5


@pytest.mark.timeout(600)
def test_adapters_on_two_ranks_equal_those_on_one_in_every_zero_stage(train: Train) -> None:
    lora = {"lora": {"rank": 4, "alpha": 8.0}}
    one_reports, one = train(world=1, steps=[0, 1], optim=SMOOTH, learner=lora)
    for stage in (0, 1, 2, 3):
        reports, weights = train(world=2, steps=[0, 1], optim=SMOOTH, learner=lora | {"zero_stage": stage})
        assert difference(one, weights) < 1e-5, f"ZeRO {stage}"
        for report, expected in zip(reports, one_reports, strict=True):
            for name in ("train/policy_loss/mean", "train/grad_norm/mean"):
                assert report["metrics"][name] == pytest.approx(expected["metrics"][name], rel=2e-4, abs=1e-6), name


@pytest.mark.timeout(300)
def test_ranks_that_share_each_row_equal_one(train: Train) -> None:
    """Ulysses: with values, entropy, a reference and rows that do not divide evenly."""
    algorithm = {
        "advantage": {"type": "gae"},
        "loss": {"type": "gspo", "clip_low": 0.5, "clip_high": 0.5},
        "kl": {"coefficient": 0.05},
        "entropy_coefficient": 0.01,
    }
    tight = {"microbatch_tokens": 48, "logit_chunk_tokens": 5}
    one_reports, one = train(world=1, steps=[0, 1], optim=GRADIENT, algorithm=algorithm, learner=tight)
    shared = tight | {"zero_stage": 3, "sequence_parallel": 2}
    reports, weights = train(world=2, steps=[0, 1], optim=GRADIENT, algorithm=algorithm, learner=shared)
    assert difference(one, weights) < 2e-5
    for report, expected in zip(reports, one_reports, strict=True):
        for name, value in expected["metrics"].items():
            if name.split("/")[1] not in {"padding", "attention_padding", "tokens_per_second"}:
                assert report["metrics"][name] == pytest.approx(value, rel=5e-4, abs=2e-6), name


@pytest.mark.timeout(300)
def test_ranks_without_work_take_part_with_empty_rows(train: Train) -> None:
    # Two trajectories of one group, in two minibatches: the second rank has nothing to do in either.
    few = {"groups": 2, "chains": 2}
    config = {"optim": GRADIENT, "rollout": {"problems_per_step": 2, "chains": 2}}
    one_reports, one = train(world=1, steps=[0], groups=few, **config)
    assert 0 < one_reports[0]["metrics"]["train/trained_trajectories/count"] <= 4
    reports, weights = train(world=2, steps=[0], groups=few, learner={"zero_stage": 3}, **config)
    assert reports[0]["metrics"]["train/idle/fraction"] > 0
    assert difference(one, weights) < 5e-6
    config["optim"] = GRADIENT | {"minibatches": 1}
    _, one = train(world=1, steps=[0], groups=few, **config)
    reports, weights = train(world=4, steps=[0], groups=few, learner={"zero_stage": 2}, **config)
    assert reports[0]["metrics"]["train/idle/fraction"] > 0.5
    assert difference(one, weights) < 5e-6


@pytest.mark.timeout(300)
def test_four_steps_equal_two_and_two_more_in_new_processes(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "000002"
    sections: dict[str, Any] = {"learner": {"zero_stage": 2}, "optim": {"minibatches": 2}}
    whole_reports, whole = train(world=2, steps=[0, 1, 2, 3], save_after=1, save_to=path, **sections)
    checkpoint = json.loads(Path(f"{path}.json").read_text())
    reports, resumed = train(world=2, steps=[2, 3], checkpoint=checkpoint, **sections)
    assert [report["weights_digest"] for report in reports] == [
        report["weights_digest"] for report in whole_reports[2:]
    ]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("before", "after"),
    [((2, 1), (1, 1)), ((1, 2), (2, 2)), ((2, 2), (1, 1)), ((2, 3), (1, 3)), ((2, 0), (1, 0))],
    ids=lambda shape: f"{shape[0]} ranks, ZeRO {shape[1]}",
)
def test_a_run_goes_on_in_another_shape_with_the_same_losses(
    train: Train, whole: Callable[[int, int], Whole], before: tuple[int, int], after: tuple[int, int]
) -> None:
    through = whole(*before)
    new_world, new_stage = after
    reports, resumed = train(
        world=new_world,
        steps=[2, 3, 4],
        checkpoint=through.checkpoint,
        optim=SMOOTH,
        learner={"zero_stage": new_stage, "allow_reshape": True},
    )
    for report, expected in zip(reports[:2], through.reports[2:4], strict=True):
        for name in ("train/policy_loss/mean", "train/mismatch_kl/mean", "train/grad_norm/mean"):
            assert report["metrics"][name] == pytest.approx(expected["metrics"][name], rel=1e-4, abs=1e-6), name
    assert difference(through.weights, resumed) < 1e-5
    assert [item.name for item in through.path.parent.iterdir() if item.is_dir()] == ["000002"]


@pytest.mark.timeout(600)
def test_a_rank_with_pictures_and_one_without_train_as_one_rank_does(train: Train, vision_model: Path) -> None:
    """The longest trajectory goes to rank 0; nothing that rank 1 has shows a picture."""
    shapes = [[20, 20, 8], [30], [15]]
    one_reports, one = train(world=1, steps=[0], optim=GRADIENT, model=vision_model, shapes=shapes)
    assert one_reports[0]["metrics"]["train/updates/count"] == 2
    for stage in (0, 2, 3):
        learner = {"zero_stage": stage}
        _, weights = train(world=2, steps=[0], optim=GRADIENT, model=vision_model, shapes=shapes, learner=learner)
        assert difference(one, weights) < 5e-6, f"ZeRO {stage}"
