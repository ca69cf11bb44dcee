"""A program that measures itself, turn by turn: asked by a line on its standard input, it answers with a line of JSON.

Its first answer, unasked, says that it has started and is warm. It stays alive between turns, so that contestants can
take turns without paying each time for their start.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Contestant", "contestant"]


class Contestant:
    """See `contestant`, which starts it."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self.name = " ".join(map(str, command[-4:]))
        self._log = log
        variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(each) for each in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **variables},
            )

    def ask(self, line: str, *, seconds: float) -> Any:
        """What it answers to a line. Raises `RuntimeError`, with its last words, if it ends or is not done in time."""
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise RuntimeError(f"{self.name} ended: {self._last_words()}") from None
        return self.answer(seconds=seconds)

    def answer(self, *, seconds: float) -> Any:
        """The next line that it says. Raises as `ask` does."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise RuntimeError(f"{self.name} was not done after {seconds:g} s: {self._last_words()}")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended: {self._last_words()}")
        return json.loads(answer)

    def end(self) -> None:
        """It is not asked any more."""
        self._process.kill()
        self._process.communicate()

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-2000:] or "it said nothing"


@contextmanager
def contestant(command: Sequence[str | Path], *, seconds: float) -> Iterator[Contestant]:
    """The program, warm; it ends with the block. Raises `RuntimeError` if it is not warm within `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        running = Contestant(command, Path(folder) / "stderr")
        try:
            running.answer(seconds=seconds)
            yield running
        finally:
            running.end()
