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
    """Seed of what is held out, and of generated problems; their order in training follows `run.seed`."""


class _SplitConfig(_SeededConfig):
    eval_problems: PositiveInt | None = None
    """Use at most this many held-out problems (the first ones after a seeded shuffle); all if unset."""
    train_problems: PositiveInt | None = None
    """Use at most this many training problems; all if unset."""


class ImageSourcesConfig(Config):
    """Where the pictures of a dataset's columns `image` and `images` may come from, beside the rows themselves and the
    data file's own folder."""

    folders: tuple[Path, ...] = ()
    """Files below them."""
    hosts: tuple[str, ...] = ()
    """Addresses of these hosts (`example.org`, `*.example.org`) are fetched while the dataset is prepared; public
    addresses only."""


class FilesDataConfig(_SplitConfig):
    """Rows of JSON (a list), JSONL, CSV, Parquet or Arrow files: `question` or `messages`, and free columns."""

    type: Literal["files"] = "files"
    train: Path
    """File of the training problems."""
    eval: Path | None = None
    """Held-out rows. If unset, `eval_fraction` of the training rows is held out."""
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training rows that is held out where `eval` is unset."""
    question_column: str = "question"
    """Column that holds the question, for rows without messages."""
    messages_column: str = "messages"
    """Column that holds a conversation to go on from; goes before the question."""
    images: ImageSourcesConfig = ImageSourcesConfig()
    """Where pictures may come from."""
    max_row_errors: Annotated[int, Field(ge=1)] = 5
    """How many bad rows an error lists before it stops."""


class HubDataConfig(_SplitConfig):
    """A dataset by its hub id, through `datasets`."""

    type: Literal["hub"] = "hub"
    path: str
    """The dataset's id, such as `openai/gsm8k`."""
    name: str | None = None
    """Its configuration, where it has several."""
    revision: str | None = None
    """Branch, tag or commit; name a commit for a run that can be repeated."""
    train_split: str = "train"
    """Split of the training problems."""
    eval_split: str | None = None
    """Split of the held-out problems; if unset, `eval_fraction` of the training rows is held out."""
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training rows that is held out where `eval_split` is unset."""
    question_column: str = "question"
    """Column that holds the question, for rows without messages."""
    messages_column: str = "messages"
    """Column that holds a conversation to go on from; goes before the question."""
    images: ImageSourcesConfig = ImageSourcesConfig()
    """Where pictures may come from."""


class Gsm8kDataConfig(_SplitConfig):
    """GSM8K in its published JSONL. `answer` ends in `#### N`: N is the column `answer`, the working `solution`."""

    type: Literal["gsm8k"] = "gsm8k"
    train: Path
    """GSM8K's `train.jsonl`."""
    eval: Path
    """GSM8K's `test.jsonl`, the held-out problems."""


class ArithmeticDataConfig(_SeededConfig):
    """Generated arithmetic word problems, from no file. The column `answer` holds the right number as text."""

    type: Literal["arithmetic"] = "arithmetic"
    train_problems: PositiveInt = 4096
    """Training problems to generate."""
    eval_problems: PositiveInt = 128
    """Held-out problems to generate; none is also a training problem."""
    max_number: Annotated[int, Field(ge=9, le=9999)] = 99
    """Largest number in a problem."""
    two_step_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of problems that need two operations."""

    @model_validator(mode="after")
    def _room(self) -> ArithmeticDataConfig:
        if self.train_problems + self.eval_problems > 40 * self.max_number**2:
            raise ValueError(
                f"max_number={self.max_number} gives too few distinct problems for "
                f"{self.train_problems} + {self.eval_problems}; raise max_number or ask for fewer"
            )
        return self


class ColoursDataConfig(_SeededConfig):
    """Generated pictures of a coloured square. The column `picture` holds one as a `data:` URL, for the tool `look`;
    `answer` the name of its colour."""

    type: Literal["colours"] = "colours"
    train_problems: PositiveInt = 2048
    """Training problems to generate."""
    eval_problems: PositiveInt = 128
    """Held-out problems to generate."""


class EnvironmentDataConfig(EnvironmentChoice, _SeededConfig):
    """The problems that an environment brings, with what the agent sees of each at first in its prompt. Which
    environment is said as in `agent.environment`."""

    type: Literal["environment"] = "environment"
    train_problems: PositiveInt = 1024
    """Use at most this many training problems, the first ones that the environment brings."""
    eval_problems: PositiveInt = 64
    """Use at most this many held-out problems, the first ones that the environment brings."""
    instances: PositiveInt = 2
    """Environments at the same time while the dataset is prepared."""


class ShardsDataConfig(Config):
    """Trajectories of runs that were scored, to be imitated (`agentfly finetune`); no problems are asked."""

    type: Literal["shards"] = "shards"
    runs: Annotated[tuple[Path, ...], Field(min_length=1)]
    """Run directories; all their scored steps are read. `algorithm.advantage.min_reward` decides which trajectories are
    good enough."""
    truncated: bool = False
    """Imitate trajectories that a limit cut, too."""
    per_problem: PositiveInt | None = None
    """Keep at most this many of each problem: those of the highest reward, among equals the shortest; all if unset."""


ProblemDataConfig = (
    FilesDataConfig | HubDataConfig | Gsm8kDataConfig | ArithmeticDataConfig | ColoursDataConfig | EnvironmentDataConfig
)
"""Sources of problems to ask."""

DataConfig = Annotated[ProblemDataConfig | ShardsDataConfig, Field(discriminator="type")]
