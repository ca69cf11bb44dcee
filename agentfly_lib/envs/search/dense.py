"""Search by embeddings: a text encoder's mean over tokens, and the nearest documents by `faiss`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentfly_lib.envs.search.corpus import Document
from agentfly_lib.envs.search.settings import DenseConfig
from agentfly_lib.errors import DataError, ModelError

__all__ = ["DenseIndex", "Encoder"]


class Encoder:
    """Texts to unit vectors. The model runs no code of its own."""

    def __init__(self, config: DenseConfig) -> None:
        from transformers import AutoModel, AutoTokenizer

        self._config = config
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(config.model, local_files_only=True)
            model: Any = AutoModel.from_pretrained(config.model, local_files_only=True, use_safetensors=True)
        except (OSError, ValueError) as error:
            raise ModelError(f"{config.model} cannot be loaded as a text encoder: {error}") from error
        self._model = model.to(config.device).eval()

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, size], float32."""
        size = self._config.batch
        parts = [self._embed(texts[first : first + size]) for first in range(0, len(texts), size)]
        return np.concatenate(parts) if parts else np.empty((0, self._model.config.hidden_size), np.float32)

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        import torch

        with torch.inference_mode():
            tokens = self._tokenizer(
                list(texts), padding=True, truncation=True, max_length=self._config.max_tokens, return_tensors="pt"
            ).to(self._config.device)
            states = self._model(**tokens).last_hidden_state  # [B, T, H]
            mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
            means = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
            return torch.nn.functional.normalize(means, dim=-1).float().cpu().numpy()


class DenseIndex:
    """An index in memory over documents, which are known by their number."""

    def __init__(self, documents: Sequence[Document], config: DenseConfig) -> None:
        import faiss

        self._config = config
        self._encode = Encoder(config)
        if config.index is not None:
            self._index: Any = faiss.read_index(str(config.index))
            if self._index.ntotal != len(documents):
                raise DataError(
                    f"{config.index} has {self._index.ntotal} vectors, and the corpus {len(documents)} rows; they must "
                    "be of one corpus"
                )
            return
        vectors = self._encode([f"{config.passage_prefix}{document.indexed_text}" for document in documents])
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def search(self, queries: Sequence[str], count: int) -> list[list[tuple[int, float]]]:
        """For each query the numbers and scores of the nearest documents."""
        vectors = self._encode([f"{self._config.query_prefix}{query}" for query in queries])
        scores, numbers = self._index.search(vectors, count)
        return [
            [(int(number), float(score)) for number, score in zip(*row, strict=True) if number >= 0]
            for row in zip(numbers, scores, strict=True)
        ]
