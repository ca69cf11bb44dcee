"""What a benchmark found: a table for people, JSON for machines, a run in MLflow, and a row in docs/performance.md."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

__all__ = ["RESULTS", "Finding", "machine", "show"]

_EXPERIMENT = "agentfly-benchmarks"
RESULTS = Path(__file__).resolve().parent.parent / "runs" / "benchmarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One figure and the bar it is held against."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    """The value must not be above this; None for figures that only inform."""
    floor: float | None = None
    """The value must not be below this."""

    @property
    def met(self) -> bool:
        return (self.bar is None or self.value <= self.bar) and (self.floor is None or self.value >= self.floor)

    @property
    def limit(self) -> str:
        """The bar in words; empty for a figure that only informs."""
        if self.bar is not None:
            return f"<= {self.bar:g}"
        return "" if self.floor is None else f">= {self.floor:g}"

    @property
    def verdict(self) -> str:
        return "" if not self.limit else "met" if self.met else "MISSED"


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was."""
    return {
        "host": platform.node(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "load": round(os.getloadavg()[0], 2),
    }


def show(name: str, findings: Sequence[Finding], *, notes: str = "") -> bool:
    """Prints and stores the findings; True if every bar is met.

    notes: what a reader must know to trust them: versions and settings of the peer, how often it was repeated.
    """
    where = machine()
    table = Table(
        title=f"{name} ({where['processor']}, {where['cores']} cores, load {where['load']:g})", caption=notes or None
    )
    for column in ("what", "value", "unit", "bar", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for finding in findings:
        table.add_row(finding.what, f"{finding.value:.4g}", finding.unit, finding.limit, finding.verdict)
    Console().print(table)
    result = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": where,
        "notes": notes,
        "findings": [asdict(finding) for finding in findings],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1))
    _log(name, findings, result)
    return all(finding.met for finding in findings)


def _log(name: str, findings: Sequence[Finding], result: dict[str, Any]) -> None:
    """As a run of the experiment `agentfly-benchmarks`, on MLFLOW_TRACKING_URI or beside the runs' own database."""
    import mlflow

    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{RESULTS.parent / 'mlflow.db'}")
    if mlflow.get_experiment_by_name(_EXPERIMENT) is None:
        mlflow.create_experiment(_EXPERIMENT, artifact_location=(RESULTS / "artifacts").as_uri())
    mlflow.set_experiment(_EXPERIMENT)
    with mlflow.start_run(run_name=name):
        mlflow.log_params(result["machine"])
        mlflow.log_metrics({_metric(finding.what): finding.value for finding in findings})
        mlflow.set_tag("bars", "met" if all(finding.met for finding in findings) else "missed")
        mlflow.log_dict(result, f"{name}.json")


def _metric(what: str) -> str:
    """A name that MLflow accepts."""
    return "".join(letter if letter.isalnum() or letter in "_-./ " else "_" for letter in what)


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
