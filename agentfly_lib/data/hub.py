"""Datasets by their hub id (or a local directory of `datasets`), through the `datasets` library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentfly_lib.configs.data import HubDataConfig
from agentfly_lib.data.fingerprint import content_sha256
from agentfly_lib.errors import DataError
from agentfly_lib.rows.sources import Row, RowFault, plain_row

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["HubSplit", "load_split"]


class HubSplit:
    """One split of a hub dataset."""

    def __init__(self, source: str, dataset: Dataset) -> None:
        self.source = source
        self._dataset = dataset

    def rows(self) -> Iterator[Row | RowFault]:
        """Its rows, counted from 1."""
        for number, values in enumerate(_undecoded(self._dataset), start=1):
            yield plain_row(self.source, number, dict(values))

    def sha256(self) -> str:
        """Hash of its content: of the cache files where there are some, else of the rows."""
        # A selection of rows shares its parent's files, so those speak for the whole only without indices.
        files = [Path(file["filename"]) for file in self._dataset.cache_files]
        digest = hashlib.sha256()
        if files and self._dataset._indices is None:
            for file in files:
                digest.update(content_sha256(file).encode())
        else:
            for values in _undecoded(self._dataset):
                digest.update(json.dumps(values, sort_keys=True, default=str).encode())
        return digest.hexdigest()


def _undecoded(dataset: Any) -> Any:
    """The same rows, pictures as the files that they are rather than as pixels."""
    from datasets import Image, List

    for name, feature in dataset.features.items():
        if isinstance(feature, Image):
            dataset = dataset.cast_column(name, Image(decode=False))
        elif isinstance(feature, List) and isinstance(feature.feature, Image):
            dataset = dataset.cast_column(name, List(Image(decode=False)))
    return dataset


def load_split(config: HubDataConfig, split: str) -> HubSplit:
    """Loads a split, downloading it if it is not in the cache. Raises `DataError` with what `datasets` says."""
    import datasets

    source = f"{config.path}{f'/{config.name}' if config.name else ''} [{split}]"
    try:
        loaded: Any = datasets.load_dataset(config.path, config.name, split=split, revision=config.revision)
    except Exception as error:
        raise DataError(
            f"cannot load the dataset {source}: {error}; check data.path, data.name and the split names, "
            "and that this machine can reach the hub or has the dataset in its cache"
        ) from error
    return HubSplit(source, loaded.with_format(None))
