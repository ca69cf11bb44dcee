"""Where problems come from. Every source ends as the same two files: train and held-out problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from agentfly_lib.configs.agent import EnvironmentChoice
from agentfly_lib.configs.base import Config

__all__ = [
    "ArithmeticDataConfig",
    "ColoursDataConfig",
    "DataConfig",
    "EnvironmentDataConfig",
    "FilesDataConfig",
    "Gsm8kDataConfig",
    "HubDataConfig",
    "ImageSourcesConfig",
    "ProblemDataConfig",
    "ShardsDataConfig",
]


class _SeededConfig(Config):
    seed: int = 0
    """Seed of the held-out split and of generated problems. The order in training depends on `run.seed`."""


class _SplitConfig(_SeededConfig):
    eval_problems: PositiveInt | None = None
    """Use at most this many held-out problems, the first after a seeded shuffle; all if unset."""
    train_problems: PositiveInt | None = None
    """Use at most this many training problems; all if unset."""


class ImageSourcesConfig(Config):
    """Where the images of the columns `image` and `images` may come from, besides the rows themselves and the data
    file's own folder."""

    folders: tuple[Path, ...] = ()
    """Folders whose files may be read, subfolders included."""
    hosts: tuple[str, ...] = ()
    """Hosts (`example.org`, `*.example.org`) from which images are downloaded while the dataset is prepared; public
    addresses only."""


class FilesDataConfig(_SplitConfig):
    """JSON (a list), JSONL, CSV, Parquet or Arrow files. Rows have `question` or `messages`, and any other columns."""

    type: Literal["files"] = "files"
    train: Path
    """File with the training problems."""
    eval: Path | None = None
    """File with the held-out problems. If unset, `eval_fraction` of the training rows is held out."""
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training rows that is held out if `eval` is unset."""
    question_column: str = "question"
    """Column with the question, for rows without messages."""
    messages_column: str = "messages"
    """Column with a conversation to continue; takes precedence over the question."""
    images: ImageSourcesConfig = ImageSourcesConfig()
    """Where images may come from."""
    max_row_errors: Annotated[int, Field(ge=1)] = 5
    """Maximum number of bad rows that an error message lists."""


class HubDataConfig(_SplitConfig):
    """A dataset from the Hugging Face hub, loaded with `datasets`."""

    type: Literal["hub"] = "hub"
    path: str
    """The dataset's id, such as `openai/gsm8k`."""
    name: str | None = None
    """Configuration of the dataset, if it has several."""
    revision: str | None = None
    """Branch, tag or commit. Name a commit to make the run reproducible."""
    train_split: str = "train"
    """Split with the training problems."""
    eval_split: str | None = None
    """Split with the held-out problems. If unset, `eval_fraction` of the training rows is held out."""
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training rows that is held out if `eval_split` is unset."""
    question_column: str = "question"
    """Column with the question, for rows without messages."""
    messages_column: str = "messages"
    """Column with a conversation to continue; takes precedence over the question."""
    images: ImageSourcesConfig = ImageSourcesConfig()
    """Where images may come from."""


class Gsm8kDataConfig(_SplitConfig):
    """GSM8K in its published JSONL. N of the final `#### N` becomes the column `answer`, the working `solution`."""

    type: Literal["gsm8k"] = "gsm8k"
    train: Path
    """GSM8K's `train.jsonl`."""
    eval: Path
    """GSM8K's `test.jsonl`, the held-out problems."""


class ArithmeticDataConfig(_SeededConfig):
    """Generated arithmetic word problems; needs no files. The column `answer` holds the correct number as text."""

    type: Literal["arithmetic"] = "arithmetic"
    train_problems: PositiveInt = 4096
    """Number of training problems to generate."""
    eval_problems: PositiveInt = 128
    """Number of held-out problems to generate; none of them is also a training problem."""
    max_number: Annotated[int, Field(ge=9, le=9999)] = 99
    """Largest number in a problem."""
    two_step_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the problems that need two operations."""

    @model_validator(mode="after")
    def _room(self) -> ArithmeticDataConfig:
        if self.train_problems + self.eval_problems > 40 * self.max_number**2:
            raise ValueError(
                f"max_number={self.max_number} gives too few distinct problems for "
                f"{self.train_problems} + {self.eval_problems}; raise max_number or ask for fewer"
            )
        return self


class ColoursDataConfig(_SeededConfig):
    """Generated pictures of a coloured square. The column `picture` holds the picture as a `data:` URL, for the tool
    `look`; the column `answer` holds the name of its colour."""

    type: Literal["colours"] = "colours"
    train_problems: PositiveInt = 2048
    """Number of training problems to generate."""
    eval_problems: PositiveInt = 128
    """Number of held-out problems to generate."""


class EnvironmentDataConfig(EnvironmentChoice, _SeededConfig):
    """The problems of an environment; each prompt contains the environment's first observation. If no environment is
    named here, `agent.environment` is used."""

    type: Literal["environment"] = "environment"
    train_problems: PositiveInt | None = None
    """Use at most this many training problems, the first that the environment provides; all if unset. Environments that
    make problems without end need a number."""
    eval_problems: PositiveInt = 64
    """Use at most this many held-out problems, the first that the environment provides."""
    instances: PositiveInt = 2
    """Number of environments that run at the same time while the dataset is prepared."""


class ShardsDataConfig(Config):
    """Scored trajectories of earlier runs to imitate (`agentfly finetune`). No rollouts are collected."""

    type: Literal["shards"] = "shards"
    runs: Annotated[tuple[Path, ...], Field(min_length=1)]
    """Run directories, of which all scored steps are read. `algorithm.advantage.min_reward` decides which trajectories
    are good enough."""
    truncated: bool = False
    """Also imitate trajectories that were cut off by a limit."""
    per_problem: PositiveInt | None = None
    """Keep at most this many trajectories of each problem: those with the highest reward, and among equals the
    shortest; all if unset."""


ProblemDataConfig = (
    FilesDataConfig | HubDataConfig | Gsm8kDataConfig | ArithmeticDataConfig | ColoursDataConfig | EnvironmentDataConfig
)
"""Sources of problems to ask."""

DataConfig = Annotated[ProblemDataConfig | ShardsDataConfig, Field(discriminator="type")]
