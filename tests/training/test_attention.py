"""A packed row computes what its documents compute alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.stack

pytest.importorskip("torch")
import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agentfly_lib.errors import ModelError  # noqa: E402
from agentfly_lib.training.attention import Documents, document_attention, register_attention  # noqa: E402
from agentfly_lib.training.packing import plan_step, to_batch  # noqa: E402

CPU = torch.device("cpu")


def boundaries(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """[heads, T, D] each; softmax over what causality (and the window) allows, written out."""
    groups = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    distance = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])[None, :]
    allowed = (distance >= 0) & (distance < (window or query.shape[1]))
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ value


@given(st.lists(st.integers(1, 24), min_size=1, max_size=8), st.sampled_from([None, 3]), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_equals_attention_written_out_document_by_document(lengths: list[int], window: int | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    query, key, value = (torch.randn(1, heads, total, 8, generator=generator) for heads in (4, 2, 2))
    documents = Documents.of(boundaries(lengths), total, CPU)
    packed, _ = document_attention(
        torch.nn.Module(), query, key, value, None, sliding_window=window, documents=documents
    )
    edges = boundaries(lengths).tolist()
    for first, last in itertools.pairwise(edges):
        alone = plain_attention(query[0, :, first:last], key[0, :, first:last], value[0, :, first:last], window)
        torch.testing.assert_close(packed[0, first:last].transpose(0, 1), alone, rtol=1e-5, atol=1e-6)


def test_similar_lengths_share_a_block_and_different_ones_do_not() -> None:
    documents = Documents.of(boundaries([10, 40, 9, 38]), 97, CPU)
    assert [(block.documents, block.longest) for block in documents.blocks] == [(2, 40), (2, 10)]


def test_tokens_behind_the_last_boundary_are_a_document_of_their_own() -> None:
    assert Documents.of(np.zeros(1, np.int32), 1, CPU).boundaries.tolist() == [0, 1]


def test_what_packed_attention_cannot_compute_is_refused() -> None:
    rows = torch.zeros(1, 1, 2, 4)
    documents = Documents.of(boundaries([2]), 2, CPU)
    with pytest.raises(ModelError, match="softcap"):
        document_attention(torch.nn.Module(), rows, rows, rows, None, documents=documents, softcap=30.0)
    with pytest.raises(ModelError, match="documents"):
        document_attention(torch.nn.Module(), rows, rows, rows, None)


def test_a_model_sees_nothing_of_the_other_documents(tiny_model: Path, factories: ModuleType) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=register_attention())
    lengths = [7, 12, 5]
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, factories.VOCABULARY, 24))
    positions = torch.cat([torch.arange(length) for length in lengths])
    documents = Documents.of(boundaries(lengths), 24, CPU)

    def logits(row: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=row[None], position_ids=positions[None], documents=documents).logits[0]

    changed = ids.clone()
    changed[:7] = (changed[:7] + 1) % factories.VOCABULARY
    assert torch.equal(logits(ids)[7:], logits(changed)[7:])
    assert not torch.equal(logits(ids)[:7], logits(changed)[:7])


def test_a_long_tail_of_lengths_leaves_hardly_any_padding(factories: ModuleType) -> None:
    """64 sequences of mean 411 and at most 1,439 tokens: rows hold tokens alone, attention's blocks little else."""
    lengths = np.random.default_rng(0).lognormal(0.0, 0.75, 64)
    for _ in range(20):
        lengths = np.minimum(lengths * 411 / lengths.mean(), 1439)
    samples = factories.samples(0, lengths.astype(int).tolist())
    plan = plan_step(samples, minibatches=1, world=2, microbatch_tokens=8192)
    tokens = slots = attended = 0
    for rank in plan.minibatches[0].ranks:
        for row in rank:
            batch = to_batch([samples[index] for index in row])
            tokens += sum(len(samples[index]) for index in row)
            slots += len(batch.token_ids)
            documents = Documents.of(batch.boundaries, len(batch.token_ids), CPU)
            attended += documents.slots
    assert tokens == sum(map(len, samples))
    assert 1 - tokens / slots <= 0.001
    assert 1 - tokens / attended <= 0.05
    padded_to_the_longest = len(samples) * max(map(len, samples))
    assert 1 - tokens / padded_to_the_longest > 0.65, "what padding would waste"
