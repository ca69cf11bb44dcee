"""`agentfly template check`: the report, printed."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentfly_lib.chat.check import Level, TemplateReport
from agentfly_lib.visible import visible

__all__ = ["render_report", "show_template"]

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}


def show_template(
    model: str,
    *,
    template: str | None,
    parser: str | None,
    thinking: bool | None,
    console: Console | None = None,
) -> bool:
    """Prints the report of a model's template; says whether it is fit for training.

    Raises `ModelError` if there is no tokenizer or no template, `ConfigError` for an unknown parser.
    """
    from agentfly_lib.chat import ChatFormat
    from agentfly_lib.chat.check import check_template

    chat = ChatFormat.from_pretrained(model, template=template, thinking=thinking)
    report = check_template(chat, parser)
    (console or Console()).print(render_report(report, model))
    return report.fit_for_training


def render_report(report: TemplateReport, model: str) -> RenderableType:
    """A renderable for `rich`; it reads as well without colour: trained tokens stand between ⟦ and ⟧."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in report.findings:
        level = finding.level.upper() if finding.level is Level.PROBLEM else str(finding.level)
        table.add_row(Text(level, _STYLES[finding.level]), Text(finding.title, "bold"), Text(visible(finding.text)))
    verdict = "fit for training" if report.fit_for_training else "would break training"
    parts: list[RenderableType] = [Rule(Text(visible(f"chat template of {model}")), align="left"), table]
    if report.sample:
        parts += [
            Text("\na conversation as it is trained on (⟦trained⟧):", "dim"),
            Padding(_sample(report), (0, 0, 0, 4)),
        ]
    return Group(*parts, Text(f"\n{verdict}", "bold green" if report.fit_for_training else "bold red"))


def _sample(report: TemplateReport) -> Text:
    text = Text()
    for stretch in report.sample:
        if stretch.new_segment:
            text.append("\n--- a new segment ---\n", "yellow")
        if stretch.trained:
            text.append("⟦").append(visible(stretch.text), "underline green").append("⟧")
        else:
            text.append(visible(stretch.text), "dim")
    return text
