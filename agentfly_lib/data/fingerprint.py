"""What keys the cache of prepared datasets: the config, the content of every file, and the version of our preparation.

Paths and times do not count: the same rows elsewhere are the same dataset, and an edited file is another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from agentfly_lib.configs.data import DataConfig
from agentfly_lib.errors import DataError

__all__ = ["content_sha256", "dataset_fingerprint"]

_PREPARATION = 1
"""Raise when prepared files change for the same input."""
_LENGTH = 32
_IRRELEVANT = frozenset({"train", "eval", "images", "max_row_errors", "instances", "place", "url"})
"""Keys that change neither rows nor split: paths and where pictures may come from (their content counts instead), the
length of error messages, and where and how much at once an environment is asked."""


def content_sha256(path: Path) -> str:
    """SHA-256 of a file. Raises `DataError` naming it if it cannot be read."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a file; give the path of one file")  # a pipe would be waited for without end
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist (looked from {Path.cwd()}); check the path in the recipe's [data]"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def dataset_fingerprint(config: DataConfig, contents: Mapping[str, str]) -> str:
    """Fingerprint of a prepared dataset. `contents` identifies each source (`train`, `eval`)."""
    value = {
        "preparation": _PREPARATION,
        "config": config.model_dump(mode="json", exclude=set(_IRRELEVANT)),
        "contents": dict(contents),
    }
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LENGTH]
