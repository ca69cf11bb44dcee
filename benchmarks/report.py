"""What a benchmark found, as a table for people and as JSON for machines, with the machine it was found on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Finding", "show"]

RESULTS = Path(__file__).resolve().parent.parent / "runs" / "benchmarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One figure and the bar it is held against."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    """The value must not be above this; None for figures that only inform."""

    @property
    def met(self) -> bool:
        return self.bar is None or self.value <= self.bar


def show(name: str, findings: Sequence[Finding]) -> bool:
    """Prints and stores the findings; True if every bar is met."""
    table = Table(title=f"{name} ({platform.processor() or platform.machine()}, {os.cpu_count()} cores)")
    for column in ("what", "value", "unit", "bar", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for finding in findings:
        bar = "" if finding.bar is None else f"<= {finding.bar:g}"
        table.add_row(
            finding.what,
            f"{finding.value:.4g}",
            finding.unit,
            bar,
            "" if finding.bar is None else "met" if finding.met else "MISSED",
        )
    Console().print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = {"host": platform.node(), "python": platform.python_version(), "cores": os.cpu_count()}
    result = {"name": name, "machine": machine, "findings": [asdict(finding) for finding in findings]}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1))
    return all(finding.met for finding in findings)
