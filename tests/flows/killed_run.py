"""A training run that is killed with SIGKILL in the middle of a chosen stage of a chosen step.

    python killed_run.py STAGE STEP RECIPE [--set KEY=VALUE ...]

The kill comes from inside, at a known place, so that the test need not guess when a stage is going on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: type, method: str, wanted: Callable[..., bool]) -> None:
    """Dies when a method has returned from a call that `wanted` picks by its arguments."""
    original = getattr(owner, method)

    def replacement(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        if wanted(*arguments, **keywords):
            die()
        return result

    setattr(owner, method, replacement)


def during(owner: type, method: str, wanted: Callable[..., bool], ready: Callable[..., bool]) -> None:
    """Dies while an asynchronous method is still working, as soon as `ready` sees its traces."""
    original = getattr(owner, method)

    async def replacement(*arguments: Any, **keywords: Any) -> Any:
        if not wanted(*arguments, **keywords):
            return await original(*arguments, **keywords)
        work = asyncio.ensure_future(original(*arguments, **keywords))
        while not work.done():
            if ready(*arguments, **keywords):
                die()
            await asyncio.sleep(0.001)
        raise AssertionError(f"{method} ended before it could be interrupted")

    setattr(owner, method, replacement)


def main(stage: str, step: int, arguments: list[str]) -> None:
    from agentfly_lib.store.manifest import RolloutStore
    from agentfly_lib.store.scores import ScoreStore
    from agentfly_lib.training.checkpoint import staging_directory
    from agentfly_lib.training.ranks import Learner

    match stage:
        case "collect":  # some groups are on disk, others are not
            after(
                RolloutStore,
                "append",
                lambda store, _: (
                    store.manifest.step == step and store.manifest.chains > 2 and 0 < len(store.missing) < 8
                ),
            )
        case "score":  # some parts have scores, and the stage is not complete
            after(
                ScoreStore,
                "append",
                lambda store, *_: f"steps/{step:06d}" in str(store._directory.path) and not store.complete,
            )
        case "update":  # the ranks are computing
            during(Learner, "update", lambda _self, _directory, number: number == step, lambda *_: True)
        case "checkpoint":  # files are being written beside the final name
            during(
                Learner,
                "save",
                lambda _self, path: path.name == f"{step:06d}",
                lambda _self, path: any(staging_directory(path).rglob("*.pt")) if path.parent.exists() else False,
            )
        case _:
            raise SystemExit(f"no stage {stage}")
    from agentfly_lib.cli import main as command

    sys.argv = ["agentfly", "train", *arguments]
    command()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
