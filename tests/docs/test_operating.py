"""docs/operating.md names what there is: every error with its own words, every deployment, every variable."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import yaml

from agentfly_lib import errors
from agentfly_lib.serve.servers import STORES

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "operating.md").read_text()


def rows(*, columns: int) -> list[list[str]]:
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line[:1] == "|"]
    return [row for row in found if len(row) == columns]


def test_every_error_is_explained_in_its_own_words() -> None:
    explained = {row[0].strip("`"): row[1:] for row in rows(columns=3) if hasattr(errors, row[0].strip("`"))}
    assert set(explained) == {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    for name, (meaning, advice) in explained.items():
        assert meaning == (inspect.getdoc(getattr(errors, name)) or "").split("\n\n")[0].replace("\n", " "), name
        assert len(advice) > 20


def test_every_deployment_is_in_the_table() -> None:
    registry = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    known = {f"{Path(entry['entrypoint'].split(':')[0]).stem}/{entry['name']}" for entry in registry["deployments"]}
    section = PAGE.split("## Deployments")[1].split("## Resuming")[0]
    assert set(re.findall(r"`((?:train|evaluate|collect|prepare)/[\w-]+)`", section)) == known


def test_every_variable_that_serve_reads_is_in_the_table() -> None:
    for name in (*STORES, "PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        assert f"`{name}`" in PAGE
