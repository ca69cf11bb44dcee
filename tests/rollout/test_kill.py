"""A process that is killed in the middle of a collection: what was finished stays, what was not is done again, once."""

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

from agentfly_lib.errors import ShardError
from agentfly_lib.store.layout import StepDirectory
from agentfly_lib.store.manifest import iter_groups, read_rollout_manifest

CHILD = """
import asyncio, runpy, sys
from types import SimpleNamespace
from pathlib import Path
world = SimpleNamespace(**runpy.run_path(sys.argv[1]))
asked = world.problems(40)

async def stuck(request):
    if int(request.request_id.split("/")[0].split("-")[1]) >= 15:
        await asyncio.Event().wait()

store = world.open_store(Path(sys.argv[2]), asked)
asyncio.run(world.gather(world.scripted("4", delay=stuck), asked, store, config=world.config(groups_per_part=4)))
"""


def groups_of(path: Path):
    directory = StepDirectory(path)
    return {g.id: g for _, groups in iter_groups(directory, read_rollout_manifest(directory)) for g in groups}


async def test_after_kill_9_the_finished_groups_are_there_and_only_the_others_are_made(world, tmp_path):
    here = Path(__file__).with_name("conftest.py")
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(CHILD), str(here), str(tmp_path)])
    try:
        directory = StepDirectory(tmp_path)
        async with asyncio.timeout(60):
            while True:
                try:
                    if len(read_rollout_manifest(directory).done) == 15:
                        break
                except ShardError:  # not written yet
                    assert child.poll() is None
                await asyncio.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(30)

    kept = groups_of(tmp_path)
    assert set(kept) == {f"0-{index}" for index in range(15)}
    asked = world.problems(40)
    generate = world.scripted("4")
    collected = await world.gather(generate, asked, world.open_store(tmp_path, asked))
    assert Counter(request.request_id for request in generate.requests) == {
        f"0-{index}/{chain}/0": 1 for index in range(15, 40) for chain in range(2)
    }
    assert collected.manifest.complete
    assert (collected.manifest.attempt, collected.manifest.duplicates) == (1, 0)
    everything = groups_of(tmp_path)
    assert len(everything) == 40
    assert all(everything[group] == kept[group] for group in kept)
