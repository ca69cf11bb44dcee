"""The end of a run in words: collections beside updates are shown where there were any."""

from __future__ import annotations

from pathlib import Path

from agentfly_lib.configs import load_config
from agentfly_lib.evaluation.report import EvaluationReport
from agentfly_lib.evaluation.runs import Progress, RunComparison, RunSummary
from agentfly_lib.viewer.compare_report import comparison_text, runs_text
from agentfly_lib.viewer.summary import summary_markdown, summary_text

PARTS = {f"time/{part}/seconds": 1.0 for part in ("generation", "tools", "reward", "forward_backward", "overhead")}
IN_TURN = PARTS | {"time/step/seconds": 5.0, "time/collect/seconds": 3.0, "time/update/seconds": 1.0}
BESIDE = IN_TURN | {"time/overlap/seconds": 0.75, "time/engine_idle/seconds": 2.0}
LINKS = {"run directory": "runs/demo"}


def shown(*steps: dict[str, float]) -> str:
    return summary_text("demo", [], list(enumerate(steps)), LINKS, root=Path("runs"))


def test_where_stages_take_turns_nothing_is_said_of_overlap() -> None:
    assert "Collections beside updates" not in shown(IN_TURN, IN_TURN)


def test_how_much_of_an_update_had_a_collection_beside_it() -> None:
    # The first step of a process is left out; the mean of the others: 0.75 of 1 and 0.25 of 1, idle 2 and 1 of 5.
    last = BESIDE | {"time/overlap/seconds": 0.25, "time/engine_idle/seconds": 1.0}
    rows = [line.split("│") for line in shown(BESIDE, BESIDE, last).splitlines() if "│" in line]
    cells = {row[1].strip(): [each.strip() for each in row[2:4]] for row in rows if len(row) > 3}
    assert cells["its own collection"] == ["3.000", ""]
    assert cells["of the update, beside a collection"] == ["0.500", "50.0% of the update"]
    assert cells["the engine without a request"] == ["1.500", "30.0% of the step"]
    page = summary_markdown("demo", [], list(enumerate([BESIDE])), LINKS)
    assert "| of the update, beside a collection | 0.750 | 75.0% of the update |" in page


def test_an_evaluation_of_which_nothing_could_be_scored_is_said_to_be_one() -> None:
    report = EvaluationReport(
        policy_version=0, mode="sampled", reward_name="x", problems=1, samples=1, reward=None, pass_at={}, scored=0,
        truncated=0, failed=0, dropped=1, behaviour={}, problem_rewards={},
    )  # fmt: skip
    run = RunSummary(
        directory=Path("runs/demo"),
        config=load_config(Path("recipes/demo.toml")),
        steps_done=0,
        points=(Progress(version=0, report=report, tokens=0, seconds=0.0),),
    )
    comparison = RunComparison(runs=(run, run), parameters=(), paired=(None, "not evaluated yet"), target=None)
    for text in (runs_text([run]), comparison_text(comparison)):
        assert "none could be scored" in text
        assert "None" not in text
