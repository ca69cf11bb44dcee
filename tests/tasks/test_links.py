"""A flow run of any number of steps keeps few of the links that Prefect makes between task runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prefect.context import FlowRunContext
from prefect.states import Completed
from prefect.utilities.engine import get_state_for_result, link_state_to_task_run_result

from tasks.links import forget_old_links


@pytest.fixture
def context() -> Iterator[FlowRunContext]:
    made = FlowRunContext.model_construct(run_results={}, task_run_assets={})
    token = FlowRunContext.__var__.set(made)
    yield made
    FlowRunContext.__var__.reset(token)


def test_only_the_newest_links_are_kept(context: FlowRunContext) -> None:
    values = [[None] for _ in range(1000)]
    for value in values:
        link_state_to_task_run_result(Completed(), value)
        forget_old_links()
    assert len(context.run_results) == 100
    assert get_state_for_result(values[-100]) is not None
    assert get_state_for_result(values[-101]) is None


def test_outside_of_a_flow_there_is_nothing_to_forget() -> None:
    forget_old_links()
