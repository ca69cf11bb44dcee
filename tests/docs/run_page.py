"""Runs the Python blocks of one page, one after another as scripts, in a process of its own.

Those processes are forked from one that has imported what most pages need, which is paid for once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path

__all__ = ["PRELOADED", "run_page"]

PRELOADED = [
    "agentfly_lib.agents",
    "agentfly_lib.data",
    "agentfly_lib.envs",
    "agentfly_lib.models.tiny",
    "agentfly_lib.rewards",
    "agentfly_lib.rollout",
    "agentfly_lib.tools.mcp_client",
    "tests.docs.run_page",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen2.tokenization_qwen2",
]


def run_page(scripts: list[Path], folder: Path, *, seconds: float) -> dict[str, str | None]:
    """The fault of each script that began, or None. `folder` is where they run, and where they find modules.

    Raises `TimeoutError`, with what the page has printed, if they do not end in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    results, printed = folder / "results.jsonl", folder / "printed.txt"
    process = context.Process(target=_run, args=(scripts, folder, results, printed))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"the page has not ended within {seconds:g} s: {printed.read_text()[-3000:]}")
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return {line["script"]: line["fault"] for line in lines}


def _run(scripts: list[Path], folder: Path, results: Path, printed: Path) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with results.open("a") as file:
        for script in scripts:
            fault = None
            try:
                runpy.run_path(str(script), run_name="__main__")
            except (Exception, SystemExit) as error:
                fault = "".join(traceback.format_exception(error))
            print(json.dumps({"script": script.name, "fault": fault}), file=file, flush=True)
