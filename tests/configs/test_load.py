"""Recipes become configs, or one error that names every wrong key with its value and the nearest valid one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from agentfly_lib.configs import (
    PretrainedModelConfig,
    RunConfig,
    config_toml,
    differing_keys,
    load_config,
    parse_overrides,
)
from agentfly_lib.configs.load import FlowConfig, assign_key
from agentfly_lib.errors import ConfigError

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SMALLEST = '[run]\nname = "x"\n[model]\ntype = "tiny"\n[data]\ntype = "arithmetic"\n'


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(SMALLEST)
    return path


def refusal(recipe: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads_and_survives_a_round_trip(path: Path) -> None:
    config = load_config(path)
    assert RunConfig.model_validate(tomllib.loads(config_toml(config))) == config


def test_overrides_are_read_as_toml_and_as_text_where_they_are_not() -> None:
    assert parse_overrides(["optim.lr=1e-4", "agent.tools=['a', 'b']", "run.name=x y", "a.b=true"]) == [
        ("optim.lr", 1e-4),
        ("agent.tools", ["a", "b"]),
        ("run.name", "x y"),
        ("a.b", True),
    ]


def test_an_override_changes_one_key_and_leaves_the_rest(recipe: Path) -> None:
    config = load_config(recipe, ["optim.lr=1e-4", "agent.reward.name=mine"])
    assert (config.optim.lr, config.agent.reward.name) == (1e-4, "mine")
    assert differing_keys(load_config(recipe), config) == [
        "agent.reward.name: 'math_equal' -> 'mine'",
        "optim.lr: 1e-06 -> 0.0001",
    ]


def test_where_a_run_lies_is_no_difference(recipe: Path) -> None:
    assert differing_keys(load_config(recipe), load_config(recipe, ["run.root=/elsewhere"])) == []


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optim.lrr=1", "unknown key optim.lrr (value 1): did you mean optim.lr?"),
        ("optim.warmup=1", "unknown key optim.warmup (value 1): did you mean optim.warmup_steps?"),
        ("lr=1", "unknown key lr (value 1): did you mean optim.lr?"),
        ("chains=4", "unknown key chains (value 4): did you mean rollout.chains?"),
        ("data.train=x", "unknown key data.train (value 'x'): it belongs to another variant"),
        ("optim.lr=fast", "optim.lr = 'fast': Input should be a valid number"),
        ("optim.lr=0", "optim.lr = 0: Input should be greater than 0"),
        ("optim.lr=inf", "optim.lr = inf: Input should be a finite number"),
        ("optim.betas=[0.9, 1.0]", "betas must lie in [0, 1)"),
        ("run.steps=1.5", "run.steps = 1.5: Input should be a valid integer"),
        ("run.name=a/b", "run.name = 'a/b'"),
        ("model.type=huge", "model.type = 'huge': there is no such type; set `model.type` to one of pretrained, tiny"),
        ("agent.type=ReAct", 'did you mean `agent.type = "react"`? Or set `agent.type` to one of hf, react'),
        ("data={}", "data.type is not set; set `data.type` to one of files, hub, gsm8k"),
        ("algorithm.advantage=grpo", 'a table is expected; write `algorithm.advantage.type = "grpo"`'),
        ("agent=raect", 'a table is expected; did you mean `agent.type = "react"`?'),
        ("agent.reward=math_equal", 'a table is expected; write `agent.reward.name = "math_equal"`'),
        ("agent.reward.parts=[1]", "agent.reward.parts.0 = 1: a table is expected; its keys are name, weight"),
        ("learner.lora=true", "learner.lora = True: a table is expected; its keys are rank, alpha"),
        (
            "agent.tools=[calculator]",
            """agent.tools = '[calculator]': a list is expected; write it as ["calculator"],""",
        ),
        ("optim.betas=0.9", "optim.betas = 0.9: a list is expected; write it as [0.9]"),
        ("learner.lora.target_modules=q_proj", """target_modules = 'q_proj': a list is expected; write it as ["q_pr"""),
        ("rollout.context_length=1024", "leaves no room after a prompt of rollout.max_prompt_tokens=1024"),
        ("optim.minibatches=3", "optim.minibatches=3 does not divide the 128 trajectories of a step"),
        ("learner.ranks=3", "learner.ranks=3 does not divide a minibatch of 128 trajectories"),
        ("rollout.chains=1", "rollout.chains=1 gives every group an advantage of 0"),
        ("rollout.max_turn_tokens=4096", "is more than a trajectory may sample"),
        ("rollout.max_policy_lag=-1", "rollout.max_policy_lag = -1: Input should be greater than or equal to 0"),
        ("rollout.sampling.top_p=0.9", "sampling: top_p would change the distribution"),
        ("rollout.sampling.repetition_penalty=1.1", "repetition_penalty would change"),
        ("rollout.sampling.presence_penalty=0.1", "presence_penalty would change"),
        ("rollout.sampling.frequency_penalty=-0.1", "frequency_penalty would change"),
        ("rollout.sampling.min_tokens=1", "min_tokens would change"),
        ("rollout.sampling.logit_bias={5=1.0}", "logit_bias would change"),
        ("data.train_problems=4", "data.train_problems=4 is fewer than rollout.problems_per_step=16"),
        ("data.max_number=9", "too few distinct problems"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(recipe: Path, override: str, expected: str) -> None:
    assert expected in refusal(recipe, override)


def test_engines_that_sleep_during_updates_cannot_collect_then(recipe: Path) -> None:
    message = refusal(recipe, "rollout.max_policy_lag=1", "inference.placement=colocated")
    assert "rollout.max_policy_lag=1 collects during updates" in message
    assert load_config(recipe, ["rollout.max_policy_lag=2", "inference.placement=split"]).rollout.max_policy_lag == 2
    assert load_config(recipe, ["inference.placement=colocated"]).rollout.max_policy_lag == 0


def test_all_faults_are_listed_at_once(recipe: Path) -> None:
    message = refusal(recipe, "optim.lrr=1", "run.steps=-1", "rollout.chain=3")
    assert message.count("\n  - ") == 3


def test_top_p_is_allowed_for_evaluation(recipe: Path) -> None:
    assert load_config(recipe, ["evaluation.sampling.top_p=0.9"]).evaluation.sampling.truncates


def test_all_that_changes_the_distribution_is_allowed_for_evaluation_and_read_back(recipe: Path) -> None:
    config = load_config(recipe, ["evaluation.sampling.logit_bias={5=1.0}", "evaluation.sampling.min_tokens=2"])
    assert config.evaluation.sampling.altered == ["min_tokens", "logit_bias"]
    assert RunConfig.model_validate(tomllib.loads(config_toml(config))) == config


def test_what_keeps_the_distribution_is_allowed_in_training(recipe: Path) -> None:
    config = load_config(recipe, ["rollout.sampling.temperature=0.8", "rollout.sampling.stop=['Observation:']"])
    assert config.rollout.sampling.stop == ("Observation:",)


def test_a_key_of_another_variant_says_so(recipe: Path) -> None:
    assert "belongs to another variant" in refusal(recipe, "data.type=gsm8k", "data.max_number=99")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[run]\nname = "x"\n')
    message = refusal(path)
    assert "model is required and not set" in message
    assert "data is required and not set" in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot read the recipe" in refusal(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[run\n")
    assert "is not valid TOML" in refusal(bad)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8" in refusal(binary)


@pytest.mark.parametrize("override", ["optim.lr", "=3", "a..b=1", ".=1"])
def test_an_override_without_key_or_value_is_refused(recipe: Path, override: str) -> None:
    assert "write it as key=value" in refusal(recipe, override)


def test_an_override_through_a_value_is_refused(recipe: Path) -> None:
    assert "run.name is the value 'x', not a table" in refusal(recipe, "run.name.first=a")


FLOW_CONFIG = TypeAdapter(FlowConfig)


def test_deployments_name_recipes_that_are_there() -> None:
    import yaml

    registry = yaml.safe_load((RECIPES.parent / "prefect.yaml").read_text())
    asked = {entry["name"]: entry.get("parameters", {}).get("config") for entry in registry["deployments"]}
    deployed = {
        name: FLOW_CONFIG.validate_python(values)
        for name, values in asked.items()
        if values and not values["recipe"].startswith("runs/")  # one takes any recipe, one that of a run
    }
    assert set(deployed) == {"demo", "gsm8k-8gpu", "collect-demo", "prepare-gsm8k"}
    differences = differing_keys(load_config(RECIPES / "demo.toml"), deployed["demo"])
    assert [key.split(":")[0] for key in differences] == ["run.name"]


class TestFlowConfig:
    def test_values_are_laid_over_a_recipe(self) -> None:
        asked = {"recipe": "recipes/demo.toml", "run": {"name": "x"}, "optim": {"lr": 0.5}}
        config = FLOW_CONFIG.validate_python(asked)
        assert (config.run.name, config.optim.lr, config.optim.minibatches) == ("x", 0.5, 2)

    def test_another_type_takes_the_place_of_the_old_one(self) -> None:
        model = {"type": "pretrained", "name_or_path": "/models/x"}
        config = FLOW_CONFIG.validate_python({"recipe": "recipes/demo.toml", "model": model})
        assert config.model == PretrainedModelConfig(name_or_path="/models/x")

    def test_a_whole_config_is_itself(self) -> None:
        config = load_config(RECIPES / "demo.toml")
        assert FLOW_CONFIG.validate_python(config) == config
        assert FLOW_CONFIG.validate_python(config.model_dump()) == config

    def test_a_missing_recipe_is_said(self) -> None:
        with pytest.raises(ConfigError, match=r"cannot read the recipe recipes/dmo\.toml"):
            FLOW_CONFIG.validate_python({"recipe": "recipes/dmo.toml"})

    def test_a_wrong_value_is_named(self) -> None:
        with pytest.raises(ValidationError, match="lrr"):
            FLOW_CONFIG.validate_python({"recipe": "recipes/demo.toml", "optim": {"lrr": 1}})


def test_a_bound_can_be_switched_off_and_survives_a_round_trip(recipe: Path) -> None:
    config = load_config(recipe, ["algorithm.loss.dual_clip=none"])
    assert config.algorithm.loss.dual_clip == "none"
    assert RunConfig.model_validate(tomllib.loads(config_toml(config))) == config


def test_secrets_do_not_belong_into_a_config(recipe: Path) -> None:
    assert "MLFLOW_TRACKING_PASSWORD" in refusal(recipe, "tracking.uri=https://me:secret@host/")


@pytest.mark.parametrize(
    ("table", "values", "key"),
    [
        ("agent.reward", {"name": "llm_judge", "settings": {"reference": None}}, "reference"),
        ("agent.reward", {"parts": [{"name": "f1", "settings": {"a": {"b": [1, None]}}}]}, r"a.b[1]"),
        ("agent.environment", {"name": "chess", "settings": {"task": None}}, "task"),
        ("agent.tool_settings", {"web_search": {"corpus": None}}, "corpus"),
        ("agent", {"type": "custom", "name": "a:B", "options": {"depth": None}}, "depth"),
        ("data", {"type": "environment", "name": "chess", "settings": {"task": None}}, "task"),
    ],
)
def test_what_no_recipe_can_say_is_refused_wherever_it_comes_from(recipe: Path, table: str, values, key: str) -> None:
    config = load_config(recipe).model_dump(mode="json")
    assign_key(config, table, values)
    with pytest.raises(ValidationError, match=re.escape(f"{key} is null, which no recipe can say")):
        RunConfig.model_validate(config)
