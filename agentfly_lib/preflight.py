"""What can be seen to be wrong with a run before its engines and learner start: names, files, directories.

It takes milliseconds, and starts nothing but the MCP servers of the recipe, which are asked for their tools.
"""

from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from pathlib import Path

from agentfly_lib.agents.agent import tools_of
from agentfly_lib.agents.kinds import agent_class
from agentfly_lib.configs import (
    CustomAdvantageConfig,
    EnvironmentDataConfig,
    FilesDataConfig,
    Gsm8kDataConfig,
    PretrainedModelConfig,
    RunConfig,
    differing_keys,
    load_config,
)
from agentfly_lib.envs.spec import configured_environment
from agentfly_lib.errors import ConfigError, DataError
from agentfly_lib.rewards.registry import build_reward
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.training.advantages.custom import load_advantage

__all__ = ["check_context", "check_run", "check_same_config", "data_files", "replay_range"]

logger = logging.getLogger(__name__)

_TIME_LIMITS = frozenset(
    {
        "inference.request_timeout_seconds",
        "inference.start_timeout_seconds",
        "inference.update_timeout_seconds",
        "learner.start_timeout_seconds",
        "learner.update_timeout_seconds",
        "rollout.stage_timeout_seconds",
    }
)


def check_run(config: RunConfig) -> None:
    """Raises `ConfigError` for an unknown agent class, tool or reward, or a missing package, `DataError` for a file
    that is not there, `ModelError` for an unusable model directory. The flow checks what needs the data or the model
    itself, before an engine starts.
    """
    agent_class(config.agent)
    tools_of(config.agent)
    build_reward(config.agent.reward)
    if isinstance(config.algorithm.advantage, CustomAdvantageConfig):
        load_advantage(config.algorithm.advantage.function)
    if config.algorithm.ablation_train_on_all_tokens:
        logger.warning(
            "ABLATION: algorithm.ablation_train_on_all_tokens trains on prompts and tool results as if the policy had "
            "written them; a policy trained like this is for comparison only"
        )
    if config.learner.lora is not None and find_spec("peft") is None:
        raise ConfigError("learner.lora needs the package peft, which is not installed; pip install peft")
    if isinstance(config.data, EnvironmentDataConfig):
        from agentfly_lib.data.environment import check_count

        spec = configured_environment(config.data, where="data")
        check_count(spec, config.data.train_problems)
        spec.check()
    for key, file in data_files(config).items():
        if not file.is_file():
            raise DataError(f"{key} = {file}: no such file (looked from {Path.cwd()}); set {key} to an existing file")
    if isinstance(config.model, PretrainedModelConfig) and Path(config.model.name_or_path).is_dir():
        from agentfly_lib.models.resolve import check_directory

        check_directory(Path(config.model.name_or_path), template=config.agent.template)


def data_files(config: RunConfig) -> dict[str, Path]:
    """The files that problems are read from, by the keys that name them."""
    if not isinstance(config.data, FilesDataConfig | Gsm8kDataConfig):
        return {}
    named = {"data.train": config.data.train, "data.eval": config.data.eval}
    return {key: file for key, file in named.items() if file is not None}


def check_context(config: RunConfig, model: Path) -> None:
    """Raises `ConfigError` if the model was not made for contexts as long as the config asks for."""
    settings = json.loads((model / "config.json").read_text(encoding="utf-8"))
    settings = settings.get("text_config", settings)
    longest = settings.get("max_position_embeddings")
    if isinstance(longest, int) and config.rollout.context_length > longest:
        raise ConfigError(
            f"rollout.context_length={config.rollout.context_length} is more than the {longest} positions that the "
            f"model in {model} was made for (max_position_embeddings); lower it, or take another model"
        )


def check_same_config(config: RunConfig) -> None:
    """Raises `ConfigError`, naming the keys that differ, if the run directory belongs to a run with another config.

    `learner.allow_reshape` makes way for another number of ranks and another ZeRO stage. Limits of time may differ: who
    reaches one is told to raise it, and to run the same command again. So may the name, which is the folder's: it was
    copied or renamed.
    """
    directory = RunDirectory(config.run.directory)
    if not directory.config_file.exists():
        return
    shape = {"learner.ranks", "learner.zero_stage"}
    free = {"run.name", "learner.allow_reshape"} | _TIME_LIMITS | (shape if config.learner.allow_reshape else set())
    found = {line.partition(":")[0]: line for line in differing_keys(load_config(directory.config_file), config)}
    differences = [line for key, line in found.items() if key not in free]
    if differences:
        convert = "\nTo go on in another shape: --set learner.allow_reshape=true" if shape & found.keys() - free else ""
        listing = "\n".join(f"  - {line}" for line in differences)
        raise ConfigError(
            f"{directory.path} holds a run with another config:\n{listing}\n"
            f"Run with the config it was started with, or give this one another name: --set run.name=NAME{convert}"
        )


def replay_range(config: RunConfig, first: int, last: int | None) -> tuple[int, int]:
    """First and last step of a replay; the last one that is stored if `last` is None.

    Raises `ConfigError` if a step is not stored or was scored by another reward since, or there is no checkpoint to
    start from.
    """
    directory, steps = RunDirectory(config.run.directory), config.run.steps
    stored = directory.first_open_step(steps)
    last = stored - 1 if last is None else last
    if not first <= last < stored:
        raise ConfigError(
            f"steps {first} to {last} cannot be trained again: {directory.path} holds {stored} finished steps, from 0"
        )
    kept = [0, *(version for version in range(1, steps + 1) if directory.checkpoint(version).exists())]
    if first not in kept:
        raise ConfigError(
            f"there is no checkpoint of version {first} to start from; a replay can start at step "
            f"{', '.join(str(version) for version in kept if version < stored)}"
        )
    for step in range(first, last + 1):
        _check_scores(directory, step)
    return first, last


def _check_scores(run: RunDirectory, number: int) -> None:
    """Raises `ConfigError` if a step's scores are not those that its update trained on."""
    from agentfly_lib.store.recorded import read_update
    from agentfly_lib.store.scores import read_score_manifest

    step = run.step(number)
    then, now = read_update(step).reward, read_score_manifest(step).reward
    if then not in (None, now):
        raise ConfigError(
            f"{step.scores} holds the scores of the reward {now!r}, but step {number} was trained on those of "
            f"{then!r}. Move those, which are kept in {step.path}/scores-*, back to {step.scores} in every such step, "
            f"or score the run again with its own reward: agentfly score {run.path} --reward-config {run.config_file}"
        )
