"""A Prefect server that is away costs a run its pages, and nothing else."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import tasks.evaluate
import tasks.page
import tasks.report
from agentfly_lib.pipeline.background import Background


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Of a run whose Prefect server does not answer."""

    async def away(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("All connection attempts failed")

    for kind in ("acreate_table_artifact", "acreate_markdown_artifact", "acreate_progress_artifact"):
        monkeypatch.setattr(tasks.page, kind, away)
    made = SimpleNamespace(background=Background(), config=None, times=SimpleNamespace(outside=nullcontext))
    for module in (tasks.evaluate, tasks.report):
        monkeypatch.setattr(module, "current_session", lambda: made)
        monkeypatch.setattr(module, "current_page", lambda: tasks.page.Page("demo"))
    return made


def answers(value: Any) -> Any:
    async def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


async def test_an_evaluation_is_closed(session: SimpleNamespace, monkeypatch, caplog) -> None:
    @asynccontextmanager
    async def within(*_: Any):
        yield

    monkeypatch.setattr(tasks.evaluate, "within", within)
    monkeypatch.setattr(tasks.evaluate.limits, "evaluate", lambda config: None)
    found = SimpleNamespace(metrics={}, table=[{"version": "0"}])
    monkeypatch.setattr(tasks.evaluate.evaluation, "evaluate", answers(found))
    monkeypatch.setattr(tasks.evaluate.evaluation, "close_evaluation", answers("closed"))
    assert await tasks.evaluate.evaluate.fn(0, None, None) == "closed"  # type: ignore[arg-type]
    await session.background.finish()
    assert "All connection attempts failed" in caplog.text


async def test_a_report_is_made(session: SimpleNamespace, monkeypatch, caplog) -> None:
    written = SimpleNamespace(summary="summary", table=[], markdown="# Report")
    monkeypatch.setattr(tasks.report, "write_report", answers(written))
    monkeypatch.setattr(tasks.report, "evaluation_report", answers(("found", [])))
    assert await tasks.report.report.fn() == "summary"
    assert await tasks.report.report_evaluation.fn("policy") == "found"
    await session.background.finish()
    assert caplog.text.count("All connection attempts failed") == 3
