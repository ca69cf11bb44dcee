"""Several things at once: results in order, the first error as it is, the others told."""

from __future__ import annotations

import asyncio

import pytest

from agentfly_lib.errors import described, first_line
from agentfly_lib.together import both, first_cause, together


async def test_results_come_in_the_order_of_the_work() -> None:
    late = asyncio.Event()

    async def first() -> int:
        await late.wait()
        return 1

    async def second() -> int:
        late.set()
        return 2

    assert await together([first(), second()]) == [1, 2]


async def test_the_first_error_ends_the_others_and_is_raised_as_it_is() -> None:
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise ValueError("no room") from OSError("full")

    with pytest.raises(ValueError, match="no room") as raised:
        await together([wait(), fail()])
    assert ended.is_set()
    assert isinstance(raised.value.__cause__, OSError)
    with pytest.raises(ValueError, match="no room"):
        await both(fail(), wait())


def test_errors_of_the_same_instant_are_told(caplog: pytest.LogCaptureFixture) -> None:
    first, inner, other = ValueError("a"), ExceptionGroup("", [KeyError("b")]), OSError("c\x1b[2J")
    assert first_cause(ExceptionGroup("", [ExceptionGroup("", [first]), inner, other])) is first
    assert [record.getMessage() for record in caplog.records] == [
        "another error came at the same time: KeyError: 'b'",
        "another error came at the same time: OSError: c␛[2J",
    ]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text", "line"),
    [
        (ValueError("\n  a\nb"), "ValueError: \n  a\nb", "a"),
        (ValueError(), "ValueError", "ValueError"),
    ],
)
def test_errors_in_words(error: Exception, text: str, line: str) -> None:
    assert (described(error), first_line(error)) == (text, line)
    assert described(Mute()) == "Mute"
