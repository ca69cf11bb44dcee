"""`agentfly top`: what a running flow does right now, from another terminal."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentfly_lib.errors import UserError
from agentfly_lib.viewer.live import step_table
from agentfly_lib.viewer.state import STALE_SECONDS, RunState, StageView, read_state
from agentfly_lib.visible import visible

__all__ = ["is_running", "newest_run", "render_state", "state_json", "state_of", "verdict", "watch_run"]

_LOOK_SECONDS = 1.0


def newest_run(root: Path) -> Path:
    """The run of a folder that said something last. Raises `UserError` if none ever did."""
    said = [(path.stat().st_mtime, path.parent) for path in root.glob("*/live.json")]
    if not said:
        raise UserError(
            f"no run in {root} has recorded its state; start one, or name a run directory: agentfly top RUN"
        )
    return max(said)[1]


def state_of(run: Path) -> RunState:
    """What a run says of itself. Raises `UserError` if it has never said anything."""
    state = read_state(run)
    if state is None:
        raise UserError(f"{run} has no recorded state: no flow has run in it with a release that has `agentfly top`")
    return state


def is_running(state: RunState) -> bool:
    """The flow goes on: it said so a moment ago, and its process is there if it is one of this machine."""
    return state.status == "RUNNING" and state.age <= STALE_SECONDS and _lives(state)


def verdict(state: RunState) -> str:
    """In words, whether the run goes on."""
    if state.status != "RUNNING":
        how = {"FINISHED": "has finished", "FAILED": "has failed", "KILLED": "was cancelled"}[state.status]
        return f"not running: it {how}, {_span(state.age)} ago"
    if not _lives(state):
        return f"not running: process {state.pid} is gone; start the run again to go on"
    if state.age > STALE_SECONDS:
        return f"silent for {_span(state.age)}: process {state.pid} on {state.host} hangs, or its machine does"
    return f"running for {_span(state.written - state.began)}, process {state.pid} on {state.host}"


def state_json(state: RunState) -> str:
    """The state, and whether the run goes on, for scripts."""
    return json.dumps({"running": is_running(state), **state.model_dump(mode="json")}, indent=2)


def watch_run(
    run: Path, *, once: bool, console: Console | None = None, until: Callable[[], bool] | None = None
) -> bool:
    """Shows a run, redrawn every second until it ends, Ctrl-C, or `until`; or once. Returns whether it is running."""
    console = console or Console()
    state = state_of(run)
    if once or not console.is_terminal:
        console.print(render_state(state))
        return is_running(state)
    with Live(render_state(state), console=console, screen=False, auto_refresh=False) as live:
        try:
            while is_running(state) and not (until and until()):
                time.sleep(_LOOK_SECONDS)
                state = state_of(run)
                live.update(render_state(state), refresh=True)
        except KeyboardInterrupt:
            pass
    return is_running(state)


def render_state(state: RunState) -> RenderableType:
    """One look at a run, for a terminal."""
    title = Text(visible(state.run), style="bold")
    title.append(f"  {verdict(state)}", style="not bold")
    if state.steps is not None:
        title.append(f"  step {state.steps_done} of {state.steps}", style="not bold")
    parts: list[RenderableType] = [title]
    if is_running(state):
        parts += [
            part for part in (_stages(state), _chains(state), _engines(state), _pools(state), _ranks(state)) if part
        ]
    if state.rows:
        parts.append(step_table("newest steps", state.rows))
    if state.warnings:
        parts.append(Text("\n".join(visible(line) for line in state.warnings), style="yellow"))
    return Group(*parts)


def _stages(state: RunState) -> RenderableType | None:
    stages = [stage for stage in state.stages if stage.name != "steps"]
    if not stages:
        return None
    table = _table("stage", "", "done", "for", "")
    for stage in stages:
        total = stage.total
        done = "" if total is None else f"{stage.completed:.0f}/{total:.0f}"
        bar = "" if total is None else ProgressBar(total=max(total, 1), completed=stage.completed, width=24)
        table.add_row(visible(stage.name), bar, done, _span(stage.seconds), visible(stage.note))
    return table


def _chains(state: RunState) -> RenderableType | None:
    stages = [stage for stage in state.stages if "chains" in stage.facts]
    if not stages:
        return None
    table = _table("chains", "done", "generating", "in tools", "open", "failed", "retried", "groups")
    for stage in stages:
        table.add_row(visible(stage.name), *_chain_cells(stage, state))
    return table


def _chain_cells(stage: StageView, state: RunState) -> Iterable[str]:
    facts = stage.facts

    def count(name: str) -> int:
        return int(facts.get(name, 0))

    yield f"{count('chains_done')}/{count('chains')}"
    yield _maybe(state.generating)
    yield _maybe(state.using_tools)
    yield str(count("chains") - count("chains_done"))
    yield str(count("failures"))
    yield str(count("retries"))
    yield f"{count('groups_done')}/{count('groups')}"


def _engines(state: RunState) -> RenderableType | None:
    if not state.engines:
        return None
    table = _table("engine", "version", "in flight", "tokens/s", "memory", "")
    for engine in state.engines:
        rate = "" if engine.tokens_per_second is None else f"{engine.tokens_per_second:.0f}"
        version = "" if engine.policy_version < 0 else str(engine.policy_version)
        cells = (version, str(engine.in_flight), rate, _memory(engine.rss_mib))
        table.add_row(visible(engine.name), *cells, visible(engine.error or ""))
    return table


def _pools(state: RunState) -> RenderableType | None:
    if not state.pools:
        return None
    table = _table("pool", "alive", "in use", "waiting", "made", "died", "failed")
    for pool in state.pools:
        counts = (pool.alive, pool.in_use, pool.waiting, pool.made, pool.died, pool.failed)
        table.add_row(visible(pool.name), *map(str, counts))
    return table


def _ranks(state: RunState) -> RenderableType | None:
    if not state.ranks:
        return None
    table = _table("rank", "process", "memory", "GPU memory", "doing")
    for number, rank in enumerate(state.ranks):
        gpu = "" if rank.gpu_mib is None else _memory(rank.gpu_mib)
        table.add_row(str(number), str(rank.pid), _memory(rank.rss_mib), gpu, visible(rank.doing))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or not column else "right")
    return table


def _lives(state: RunState) -> bool:
    """Its process is there; of another machine's we know nothing."""
    if state.host != socket.gethostname():
        return True
    try:
        os.kill(state.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _maybe(count: int | None) -> str:
    return "" if count is None else str(count)


def _memory(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
