"""The log-prob that is kept is the sampled token's, wherever vLLM lists it."""

from dataclasses import dataclass, field

import pytest

from agentfly_lib.inference.translate import chosen_logprobs


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
