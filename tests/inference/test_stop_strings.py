"""Stop texts: the generation ends with the token that completes one, at every way of cutting the text into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.configs import SamplingConfig
from agentfly_lib.inference import GenerationRequest
from agentfly_lib.inference.stop_strings import StopStrings, stops_of, text_decoder


def ends_at(pieces: list[bytes], *stops: str, min_tokens: int = 0) -> int | None:
    """How many of the tokens, each a piece of UTF-8, are taken."""
    search = StopStrings(
        lambda ids: b"".join(pieces[index] for index in ids).decode("utf-8", errors="replace"),
        stops,
        min_tokens=min_tokens,
    )
    return next((number for number in range(1, len(pieces) + 1) if search.push(number - 1)), None)


def expected_end(pieces: list[bytes], *stops: str) -> int | None:
    """The first number of tokens whose whole text holds one of the texts."""
    for number in range(1, len(pieces) + 1):
        text = b"".join(pieces[:number]).decode("utf-8", errors="replace")
        if any(stop in text for stop in stops):
            return number
    return None


@given(
    st.text("ab\nÜ四👩", max_size=40),
    st.lists(st.text("ab\nÜ四👩", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_at_every_split_it_is_the_token_that_completes_a_text(text, stops, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(raw) - 1, 1)))))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True) if raw[start:end]]
    assert ends_at(pieces, *stops) == expected_end(pieces, *stops)


def test_what_is_complete_within_the_least_number_of_tokens_does_not_count():
    pieces = [b"x", b"ST", b"OP", b"y", b"ST", b"OP z"]
    assert ends_at(pieces, "STOP") == 3
    assert ends_at(pieces, "STOP", min_tokens=2) == 3
    assert ends_at(pieces, "STOP", min_tokens=3) == 6


def test_the_models_own_tokenizer_decodes(variants):
    decode = text_decoder(variants["tied"].first)
    assert decode([5, 3, 12]) == "w5w3w12"


def test_a_model_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"stop strings need the tokenizer of {tmp_path}, which cannot be loaded"):
        text_decoder(tmp_path)


def test_stop_strings_where_nothing_decodes():
    sampling = SamplingConfig(stop=("x",))
    with pytest.raises(ValueError, match="request 'r' has stop strings"):
        stops_of(GenerationRequest(request_id="r", token_ids=[1], max_tokens=1, sampling=sampling), None)
