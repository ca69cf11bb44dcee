"""The report of a run, or of a stand-alone evaluation: in its directory, in MLflow, and on the page."""

from __future__ import annotations

from prefect import task

from agentfly_lib.pipeline.report import EvaluateReport, TrainReport, evaluation_report, write_report
from tasks.options import RETRIED
from tasks.session import current_page, current_session

__all__ = ["report", "report_evaluation"]


@task(name="report", **RETRIED)
async def report() -> TrainReport:
    """Reward before and after, its plot, and where the time went."""
    session, page = current_session(), current_page()
    written = await write_report(session)
    session.background.start(page.evaluations(written.table))
    session.background.start(page.report(written.markdown))
    return written.summary


@task(name="report", **RETRIED)
async def report_evaluation(policy: str) -> EvaluateReport:
    """What a stand-alone evaluation found, and its table."""
    session = current_session()
    found, table = await evaluation_report(session, policy)
    session.background.start(current_page().evaluation(table, policy))
    return found
