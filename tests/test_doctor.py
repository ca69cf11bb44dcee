"""What the doctor finds before anything is started, and what it reads from a rehearsal."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from agentfly_lib.configs import load_config
from agentfly_lib.doctor import Check, _judge, _shared_memory, _small, examine, rehearse
from agentfly_lib.errors import EngineError
from agentfly_lib.planning import Machine, plan_run
from agentfly_lib.viewer.doctor_report import render_checks

pytestmark = pytest.mark.stack


def config(tmp_path, *changes, recipe="ci"):
    return load_config(Path(f"recipes/{recipe}.toml"), [f"run.root={tmp_path}", *changes])


def found(checks, what) -> list[Check]:
    return [check for check in checks if check.what == what]


def test_a_healthy_recipe_passes(tmp_path):
    checks = list(examine(config(tmp_path)))
    assert [check for check in checks if check.level == "fail"] == []
    assert {"packages", "disk", "plan", "recipe", "model", "agent", "data", "reward", "prompts"} <= {
        c.what for c in checks
    }
    (prompts,) = found(checks, "prompts")
    assert "at most 128 are allowed" in prompts.text


def test_a_recipe_with_pictures_passes_and_a_model_that_does_not_see_them_is_told(tmp_path):
    checks = list(examine(config(tmp_path, "model.warm_steps=1", recipe="vision-ci")))
    assert [check for check in checks if check.level == "fail"] == []
    (pictures,) = found(checks, "pictures")
    assert "as many placeholders as the model has features" in pictures.text
    assert len([check for check in checks if check.what.startswith("template: pictures in")]) == 2

    (refused,) = found(examine(config(tmp_path, "agent.type=image")), "pictures")
    assert refused.level == "fail"
    assert "Qwen2.5-VL" in refused.text


@pytest.mark.parametrize(
    ("changes", "what", "said"),
    [
        (["agent.reward.name=nowhere:x"], "recipe", "nowhere"),
        (["agent.tools=['calculater']"], "recipe", "did you mean 'calculator'"),
        (["rollout.max_prompt_tokens=20"], "prompts", "raise rollout.max_prompt_tokens"),
        (["inference.kv_cache_mib=1", "rollout.context_length=2000"], "plan", "or inference.kv_cache_mib on a CPU"),
        (["model.type=pretrained", "model.name_or_path=/nowhere/model"], "model", "no model directory"),
        (["inference.device=cuda"], "plan", "no GPU is visible"),
    ],
)  # fmt: skip
def test_what_would_go_wrong_is_said(tmp_path, changes, what, said):
    if "model.type=pretrained" in changes:
        path = tmp_path / "recipe.toml"
        text = Path("recipes/ci.toml").read_text()
        path.write_text(text.replace('type = "tiny"', 'type = "pretrained"\nname_or_path = "/nowhere/model"'))
        asked = load_config(path, [f"run.root={tmp_path}"])
    else:
        asked = config(tmp_path, *changes)
    failures = [check for check in found(examine(asked), what) if check.level == "fail"]
    assert failures
    assert any(said in check.text for check in failures), failures


def test_servers_that_do_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    checks = list(examine(config(tmp_path, "agent.tools=['calculater']")))
    assert found(checks, "Prefect server")[0].level == "fail"
    assert found(checks, "MLflow server")[0].level == "warn"


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 20, "total": 1 << 30})())
    (disk,) = found(examine(config(tmp_path, "agent.tools=['calculater']")), "disk")
    assert (disk.level, "make room" in disk.text) == ("fail", True)


@pytest.mark.parametrize(
    ("changes", "bytes_of_each"),
    [
        ([], 4),
        (["learner.dtype=bfloat16"], 2),
        (["learner.lora.rank=4"], 4),
        (["learner.lora.rank=4", "inference.lora_sync=adapter"], None),
        (["inference.placement=split", "inference.weight_transfer=nccl"], None),
    ],
)
def test_shared_memory_needs_room_for_the_weights_that_go_through_it(tmp_path, changes, bytes_of_each):
    recipe = config(tmp_path, *changes)
    plan = plan_run(recipe, Machine(cpus=8, memory_bytes=2**34, gpus=8 if "nccl" in str(changes) else 0))
    assert plan.shape is not None
    checks = list(_shared_memory(recipe, plan))
    assert len(checks) == (bytes_of_each is not None)
    for check in checks:
        assert f"weights take {bytes_of_each * plan.shape.parameters / 2**20:.0f} MiB there" in check.text


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ([], 2),
        (["rollout.problems_per_step=1", "optim.minibatches=1"], 1),
        (["rollout.chains=3", "optim.minibatches=4", "rollout.problems_per_step=8"], 4),
        (["rollout.chains=2", "optim.minibatches=2", "learner.ranks=4", "rollout.problems_per_step=8"], 4),
    ],
)  # fmt: skip
def test_a_rehearsal_is_small_and_possible(tmp_path, changes, problems):
    small = _small(config(tmp_path, *changes))
    assert (small.run.steps, small.rollout.problems_per_step, small.run.name) == (2, problems, "ci-doctor")


def metrics(**changes) -> list[dict[str, float]]:
    values = {
        "train/mismatch/max": 1e-5,
        "train/mismatch_kl_k1/mean": 1e-8,
        "time/step/seconds": 2.0,
        "rollout/trajectories/count": 16.0,
        "rollout/failed_tool/count": 0.0,
    }
    second = values | {"sync/canary_difference/mean": 1e-6}
    return [values | changes, second | changes]


def test_what_a_rehearsal_tells(tmp_path):
    whole = config(tmp_path)
    small = _small(whole)
    assert {check.level for check in _judge(whole, small, metrics())} == {"pass"}
    (time,) = found(_judge(whole, small, metrics()), "time")
    assert "8 take at most 8 s" in time.text  # 2 s for 2 problems
    apart = list(_judge(whole, small, metrics(**{"train/mismatch/max": 0.3})))
    assert found(apart, "log-probs, engine against learner")[0].level == "fail"
    broken = list(_judge(whole, small, metrics(**{"rollout/failed_tool/count": 3.0})))
    assert found(broken, "trajectories") == [Check(level="warn", what="trajectories", text="3 of 16 failed")]


def test_a_rehearsal_that_breaks_is_one_line_and_leaves_nothing(tmp_path):
    def train(small):
        small.run.directory.mkdir(parents=True)
        raise EngineError("the engine cannot start: no memory")

    (check,) = rehearse(config(tmp_path), train)
    assert (check.level, check.text) == ("fail", "the engine cannot start: no memory")
    assert not (tmp_path / "ci-doctor").exists()


def test_a_rehearsal_reads_its_steps_and_removes_them(tmp_path):
    def train(small):
        for step, values in enumerate(metrics()):
            folder = small.run.directory / "steps" / f"{step:06d}"
            folder.mkdir(parents=True)
            (folder / "metrics.json").write_text(json.dumps(values))

    assert {check.level for check in rehearse(config(tmp_path), train)} == {"pass"}
    assert not (tmp_path / "ci-doctor").exists()


def test_the_table(tmp_path):
    output = io.StringIO()
    console = Console(file=output, width=100)
    assert render_checks([Check(level="pass", what="a", text="well")], console=console)
    assert not render_checks([Check(level="fail", what="b", text="\x1b[2Jbad")], console=console)
    assert "\x1b" not in output.getvalue()
    assert "1 checks, 0 warnings, 1 failed" in output.getvalue()
