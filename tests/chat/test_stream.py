"""Text shown while it is sampled is the text that was sampled, however the stream is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from agentfly_lib.chat.stream import StreamDecoder

SETTINGS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def pieces_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(bounds)]


def streamed(decoder: StreamDecoder, pieces: list[list[int]]) -> str:
    return "".join([*map(decoder.push, pieces), decoder.finish()])


@SETTINGS
@given(
    text=st.text(max_size=40) | st.text("你好世界👩‍👧🎉é\ufffd a", max_size=20),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_text_cut_anywhere(format_of, text, cuts):
    chat = format_of("qwen2.5")
    ids = chat.encode(text)
    assert streamed(chat.stream_decoder(), pieces_of(ids, cuts)) == text


@SETTINGS
@given(ids=st.lists(st.integers(0, 430), max_size=60), cuts=st.lists(st.integers(0, 60), max_size=12))
def test_any_tokens_cut_anywhere(format_of, ids, cuts):
    """Single bytes, invalid sequences and control tokens included."""
    chat = format_of("qwen2.5")
    assert streamed(chat.stream_decoder(), pieces_of(ids, cuts)) == chat.decode(ids, end_of_turn=True)


def test_one_token_at_a_time_gives_whole_characters(format_of):
    chat = format_of("qwen2.5")
    decoder = chat.stream_decoder()
    shown = [decoder.push([token]) for token in chat.encode("世🎉")]
    assert [text for text in shown if text] == ["世", "🎉"]
    assert decoder.finish() == ""


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FALLBACK = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*BYTES, "▁a", "b", "▁世"])}, merges=[]))
FALLBACK.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


@SETTINGS
@given(
    ids=st.lists(st.sampled_from([0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x41, 256, 257, 258]), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_vocabularies_with_byte_fallback_and_a_stripped_first_space(ids, cuts):
    """These decode a run of raw bytes as a whole: one bad byte makes replacement characters of all of them."""
    decoder = StreamDecoder(lambda ids: FALLBACK.decode(list(ids)), FALLBACK.id_to_token)
    assert streamed(decoder, pieces_of(ids, cuts)) == FALLBACK.decode(ids)
