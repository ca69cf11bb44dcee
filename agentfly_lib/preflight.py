"""What can be seen to be wrong with a run in milliseconds, before anything is started: names, files, directories."""

from __future__ import annotations

from pathlib import Path

from agentfly_lib.agents.agent import as_reward, as_tools
from agentfly_lib.configs import FilesDataConfig, Gsm8kDataConfig, PretrainedModelConfig, RunConfig
from agentfly_lib.errors import DataError
from agentfly_lib.models.resolve import check_directory

__all__ = ["check_run"]


def check_run(config: RunConfig) -> None:
    """Raises `ConfigError` for an unknown tool or reward, `DataError` for a file that is not there, `ModelError` for an
    unusable model directory. The flow checks what needs the data or the model itself, before an engine starts.
    """
    as_tools(config.agent.tools)
    as_reward(config.agent.reward.name)
    if isinstance(config.data, FilesDataConfig | Gsm8kDataConfig):
        for key in ("train", "eval"):
            file = getattr(config.data, key)
            if file is not None and not file.is_file():
                raise DataError(
                    f"data.{key} = {file}: there is no such file (seen from {Path.cwd()}); set data.{key} to one that is"
                )
    if isinstance(config.model, PretrainedModelConfig) and Path(config.model.name_or_path).is_dir():
        check_directory(Path(config.model.name_or_path))
