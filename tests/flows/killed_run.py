"""A training run that is hurt at a known place: itself killed or interrupted, or its engine, or its learner killed.

    python killed_run.py PLACE[,PLACE...] RECIPE [--set KEY=VALUE ...]

A place is `stage:step`. The blow comes from inside, so that a test need not guess when a stage is going on.

    collect:0      itself, with some groups of the step on disk and others not
    interrupt:1    itself, by Ctrl-C, with some parts scored
    update:1       itself, while the ranks compute
    record:1       itself, after the ranks have a new version and before anything says so
    checkpoint:2   itself, while files are written beside the final name, in the background
    engine:1       the processes of all engines, in the middle of the collection; the run goes on
    one-engine:1   one engine's process, likewise; when that was done and noticed is written to stderr
    rank:2         a learner rank's process, likewise, in the middle of the update
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def actors(title: str) -> list[psutil.Process]:
    """Processes of this run's Ray whose title has this piece: Ray puts class and method there while one runs."""
    mine = os.environ["AGENTFLY_LEASH"]
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if title in " ".join(process.info["cmdline"] or []):
            try:
                if process.environ().get("AGENTFLY_LEASH") == mine:
                    found.append(process)
            except psutil.Error:
                continue
    return found


@functools.cache
def ranks() -> list[psutil.Process]:
    return actors("LearnerActor")


def ranks_compute() -> bool:
    """Looks at few processes, because an update of the small model is soon over."""
    return any("LearnerActor.update" in " ".join(rank.cmdline()) for rank in ranks())


def after(owner: type, method: str, wanted: Callable[..., bool], blow: Callable[[], None]) -> None:
    """Strikes when a method has returned from the first call that `wanted` picks by its arguments."""
    original = getattr(owner, method)
    struck = []

    def replacement(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        if not struck and wanted(*arguments, **keywords):
            struck.append(True)
            blow()
        return result

    setattr(owner, method, replacement)


def during(owner: type, method: str, wanted: Callable[..., bool], ready: Callable[..., bool], blow: Callable) -> None:
    """Strikes while an asynchronous method is still working, as soon as `ready` sees its traces."""
    original = getattr(owner, method)
    struck = []

    async def replacement(*arguments: Any, **keywords: Any) -> Any:
        if struck or not wanted(*arguments, **keywords):
            return await original(*arguments, **keywords)
        ready(*arguments, **keywords)  # a first look takes longer than some methods work
        work = asyncio.ensure_future(original(*arguments, **keywords))
        while not work.done():
            if ready(*arguments, **keywords):
                struck.append(True)
                blow()
                return await work
            await asyncio.sleep(0.001)
        raise AssertionError(f"{method} ended before it could be interrupted")

    setattr(owner, method, replacement)


def kill_one_engine() -> None:
    """Says when it did, and when a client noticed, in seconds since the epoch."""
    from agentfly_lib.inference.client import RayGenerate

    noticed = RayGenerate._tell_loss

    def notice(self: RayGenerate, loss: Any) -> None:
        print(f"noticed {loss.noticed}", file=sys.stderr, flush=True)
        noticed(self, loss)

    RayGenerate._tell_loss = notice  # type: ignore[method-assign]
    print(f"killed {time.time()}", file=sys.stderr, flush=True)
    actors("EngineServer")[0].kill()


def prepare(place: str) -> None:
    from agentfly_lib.errors import LearnerError
    from agentfly_lib.store.manifest import RolloutStore
    from agentfly_lib.store.scores import ScoreStore
    from agentfly_lib.training.checkpoint import staging_directory
    from agentfly_lib.training.ranks import Learner

    stage, _, number = place.partition(":")
    step = int(number)

    def half_collected(store: Any, _: Any) -> bool:
        training = "steps" in store._directory.path.parts
        return training and store.manifest.step == step and 0 < len(store.missing) < store.manifest.problems

    def updates(_self: Any, _directory: Any, current: int) -> bool:
        return current == step

    match stage:
        case "collect":
            after(RolloutStore, "append", half_collected, die)
        case "interrupt":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
            after(
                ScoreStore,
                "append",
                lambda store, *_: f"steps/{step:06d}" in str(store._directory.path) and not store.complete,
                lambda: os.kill(os.getpid(), signal.SIGINT),
            )
        case "update":
            during(Learner, "update", updates, lambda *_: ranks_compute(), die)
        case "record":
            original = Learner.update

            async def update_and_die(self: Any, directory: Any, current: int) -> Any:
                report = await original(self, directory, current)
                if current == step:
                    die()
                return report

            Learner.update = update_and_die  # type: ignore[method-assign]
        case "checkpoint":
            begin = Learner.begin_save

            async def begin_and_die(self: Any, path: Path) -> None:
                await begin(self, path)
                while path.name == f"{step:06d}":
                    if path.exists() or any(staging_directory(path).rglob("*.pt")):
                        die()

            Learner.begin_save = begin_and_die  # type: ignore[method-assign]
        case "engine":
            after(RolloutStore, "append", half_collected, lambda: [each.kill() for each in actors("EngineServer")])
        case "one-engine":
            after(RolloutStore, "append", half_collected, kill_one_engine)
        case "rank":
            original = Learner.update

            async def update_and_notice(self: Any, directory: Path, current: int) -> Any:
                try:
                    return await original(self, directory, current)
                except LearnerError:
                    print(f"noticed-rank {time.time()}", file=sys.stderr, flush=True)
                    raise

            def strike() -> None:
                print(f"killed-rank {time.time()}", file=sys.stderr, flush=True)
                actors("LearnerActor")[-1].kill()

            Learner.update = update_and_notice  # type: ignore[method-assign]
            during(Learner, "update", updates, lambda *_: ranks_compute(), strike)
        case _:
            raise SystemExit(f"no stage {stage}")


def main(places: str, arguments: list[str]) -> None:
    from agentfly_lib.cli import main as command

    for place in places.split(","):
        prepare(place)
    sys.argv = ["agentfly", "train", *arguments]
    command()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(sys.argv[1], sys.argv[2:])
