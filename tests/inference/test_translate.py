"""The log-prob that is kept is the sampled token's, wherever vLLM lists it."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from agentfly_lib.inference.generate import Generation
from agentfly_lib.inference.translate import chosen_logprobs, generation_of
from agentfly_lib.types import FinishReason


@dataclass
class FlatTable:
    """The layout of vLLM's flat log-probs: entries of position i lie in `[start_indices[i], end_indices[i])`."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start_indices)


def table(*positions: dict[int, float]) -> FlatTable:
    flat = FlatTable()
    for position in positions:
        flat.start_indices.append(len(flat.token_ids))
        flat.token_ids.extend(position)
        flat.logprobs.extend(position.values())
        flat.end_indices.append(len(flat.token_ids))
    return flat


def test_it_is_looked_up_by_id_not_taken_first():
    assert chosen_logprobs(table({9: -0.1, 4: -2.5}, {4: -0.3, 9: -1.0}), [4, 9]) == [-2.5, -1.0]


def test_a_position_without_its_token_is_an_error():
    with pytest.raises(KeyError, match="token 5"):
        chosen_logprobs(table({9: -0.1}), [5])


def test_as_many_positions_as_tokens():
    with pytest.raises(KeyError, match="2 tokens, but log-probs for 1"):
        chosen_logprobs(table({9: -0.1}), [9, 9])


def finished(spans: list[tuple[str, int, int]] | None) -> SimpleNamespace:
    """What vLLM gives at the end of a request that sampled four tokens."""
    completion = SimpleNamespace(
        token_ids=[5, 6, 7, 8],
        logprobs=table({5: -1.0}, {6: -2.0}, {7: -3.0}, {8: -4.0}),
        finish_reason="stop",
        weight_versions=spans and [SimpleNamespace(version=v, start=s, end=e) for v, s, e in spans],
    )
    return SimpleNamespace(outputs=[completion], num_cached_tokens=None)


def test_each_token_has_the_version_of_its_span():
    generation = generation_of(finished([("3", 0, 1), ("4", 1, 3), ("6", 3, 4)]), seconds=0.5)  # pyright: ignore[reportArgumentType]
    assert (generation.policy_version, generation.versions) == (3, [3, 4, 4, 6])


def test_without_spans_nobody_knows_the_version():
    generation = generation_of(finished(None), seconds=0.5)  # pyright: ignore[reportArgumentType]
    assert (generation.policy_version, generation.versions) == (-1, [-1] * 4)


def test_one_version_sampled_every_token_unless_it_is_said_otherwise():
    generation = Generation(token_ids=[1, 2], logprobs=[-1.0] * 2, finish=FinishReason.STOP, policy_version=7)
    assert generation.versions == [7, 7]
