"""`run_sync`: in scripts, and in a notebook, where a loop is running already."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from agentfly_lib.agents import HFAgent
from agentfly_lib.agents.blocking import run_blocking


async def current() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


def test_without_a_loop_it_runs_here():
    assert run_blocking(current)[1] is threading.current_thread()


async def test_inside_a_loop_it_runs_in_a_loop_of_its_own():
    loop, thread = run_blocking(current)
    assert loop is not asyncio.get_running_loop()
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


async def test_an_agent_inside_a_loop(model_path):
    agent = HFAgent(model_path, backend_config={"backend": "scripted", "script": ["4"]})
    assert agent.run_sync("2 * 2?").trajectories[0].final_response == "4"


async def test_errors_and_context_pass_through():
    variable = contextvars.ContextVar("variable", default="outside")
    variable.set("inside")

    async def fail() -> None:
        raise KeyError(variable.get())

    with pytest.raises(KeyError, match="inside"):
        run_blocking(fail)


async def test_an_interrupt_cancels_the_work(monkeypatch):
    began, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupted(self, timeout=None):
        assert began.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr("agentfly_lib.agents.blocking.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_blocking(work)
    assert cancelled.is_set()
