"""Settings of an index over a corpus, and of the environment that searches it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from agentfly_lib.configs.base import Config
from agentfly_lib.envs.environment import EnvironmentSettings
from agentfly_lib.envs.search.bm25 import PACKAGES
from agentfly_lib.errors import ConfigError

__all__ = ["Bm25Config", "DenseConfig", "GeneratedCorpus", "IndexConfig", "SearchSettings", "check", "check_index"]


class Bm25Config(Config):
    """By words, weighted by how rare they are."""

    type: Literal["bm25"] = "bm25"
    k1: PositiveFloat = 0.9
    b: Annotated[float, Field(ge=0, le=1)] = 0.4


class DenseConfig(Config):
    """By the inner product of embeddings. Needs `faiss` and torch."""

    type: Literal["dense"] = "dense"
    model: Path
    """Folder of a text encoder with its tokenizer, such as E5 or MiniLM; its tokens' mean is the embedding."""
    index: Path | None = None
    """An index that `faiss` has written, with one vector for each row of the corpus in its order. Unset: the corpus is
    embedded at the start."""
    query_prefix: str = ""
    """Put before every query; E5 wants `query: `."""
    passage_prefix: str = ""
    """Put before every document; E5 wants `passage: `."""
    max_tokens: PositiveInt = 256
    """Of a text; the rest is not looked at."""
    batch: PositiveInt = 64
    """Texts that are embedded at once."""
    device: str = "cpu"


class GeneratedCorpus(Config):
    """Made-up towns and people, from no file, with questions about them."""

    towns: PositiveInt = 200
    seed: int = 0


class IndexConfig(Config):
    """A corpus and how it is searched. Equal ones share one service."""

    corpus: Path | None = None
    """JSONL with `text` (or `contents`) and, if there are any, `title` and `id`. Unset: `generated`."""
    generated: GeneratedCorpus = GeneratedCorpus()
    method: Annotated[Bm25Config | DenseConfig, Field(discriminator="type")] = Bm25Config()
    start_seconds: PositiveFloat = 1800.0
    """Limit for reading and indexing the corpus."""
    timeout_seconds: PositiveFloat = 30.0
    """Limit of a search."""


class SearchSettings(EnvironmentSettings):
    """Questions, and the index that helps to answer them."""

    index: IndexConfig = IndexConfig()
    train: Path | None = None
    """JSONL with `question` and `answer` (or `golden_answers`): a text, or several of which any will do. Unset:
    questions about the generated corpus."""
    eval: Path | None = None
    """Held-out questions."""
    reward: Literal["exact_match", "f1"] = "exact_match"
    results: Annotated[int, Field(ge=1, le=100)] = 3
    """Documents shown for a search."""
    max_document_chars: PositiveInt = 1000
    """Of one document."""

    @model_validator(mode="after")
    def _questions_fit_the_corpus(self) -> SearchSettings:
        if (self.train is None) != (self.eval is None):
            raise ValueError("train and eval belong together: give both files of questions, or none")
        if (self.index.corpus is None) != (self.train is None):
            raise ValueError("index.corpus, train and eval belong together: give all three files, or none")
        return self


def check_index(config: IndexConfig, where: str) -> None:
    """Raises `ConfigError` naming packages that are not installed, or files that are not there."""
    method = config.method
    needed = PACKAGES if isinstance(method, Bm25Config) else {"faiss": "faiss-cpu", "torch": "torch"}
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(f"{where} needs {', '.join(missing)}: pip install 'agentfly-lib[envs]' or those packages")
    files = [config.corpus]
    if isinstance(method, DenseConfig):
        files += [method.index]
        if not (method.model / "config.json").is_file():
            raise ConfigError(f"{where}: {method.model} is not the folder of a model (it has no config.json)")
    absent = [str(path) for path in files if path is not None and not path.is_file()]
    if absent:
        raise ConfigError(f"{where}: there is no {', no '.join(absent)} (looked from {Path.cwd()})")


def check(settings: SearchSettings) -> None:
    """`check_index`, and the files of questions."""
    check_index(settings.index, "search")
    absent = [str(path) for path in (settings.train, settings.eval) if path is not None and not path.is_file()]
    if absent:
        raise ConfigError(f"search: there is no {', no '.join(absent)} (looked from {Path.cwd()})")
