"""What comes out of a sandbox when whoever is inside has forged it: nothing but `SandboxError`, and bounded."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, cast

import pytest

from agentfly_lib.errors import SandboxError
from agentfly_lib.resources import Sandbox
from agentfly_lib.resources.conversation import Completed
from agentfly_lib.resources.copying import read_tree


class Forging:
    """A sandbox that always answers the same."""

    python = "python3"

    def __init__(self, answer: Any) -> None:
        self.answer = answer if isinstance(answer, str) else json.dumps(answer)

    async def run(self, argv: list[str], **_: Any) -> Completed:
        return Completed(
            stdout=self.answer,
            stderr="",
            cut_stdout=0,
            cut_stderr=0,
            exit_code=0,
            timed_out=False,
            reply=None,
            fresh=True,
        )


def piece(**changes: Any) -> dict[str, Any]:
    data = base64.b64encode(b"data").decode()
    return {"path": "file", "kind": "file", "mode": 0o644, "offset": 0, "data": data} | changes


def of(*pieces: Any, after: Any = None) -> dict[str, Any]:
    return {"pieces": list(pieces), "next": after}


async def copy(answer: Any, target: Path) -> None:
    await read_tree(cast(Sandbox, Forging(answer)), "/workspace", target, 1 << 20)


async def test_pieces_that_follow_each_other_make_a_file(tmp_path: Path):
    await copy(of(piece(), piece(offset=4)), tmp_path)
    assert (tmp_path / "file").read_bytes() == b"datadata"


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 100_000,
        of(piece(path="\ud800")),
        of(piece(kind="link", target="\ud800")),
        of(piece(kind="link", target=3)),
        of(piece(path=3)),
        of(piece(mode=float("inf"))),
        of(piece(offset=-1)),
        of(piece(offset=1)),
        of(piece(offset=10**13)),
        of(piece(offset=2**70)),
        of(piece(), piece(offset=3)),
        of(piece(path="x" * 5000)),
        of(after=["file", 0]),
        {"pieces": 3, "next": None},
    ],
    ids=lambda answer: str(answer)[:60],
)
async def test_what_is_no_file_is_refused(answer: Any, tmp_path: Path):
    with pytest.raises(SandboxError):
        await copy(answer, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4
