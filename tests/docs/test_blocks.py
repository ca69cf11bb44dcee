"""Every Python block of the README and of docs/ runs; every shell block runs elsewhere or says why it does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?P<note><!--[^\n]*-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS_OF_CI = ("make demo", "make test", "make check", "make setup")
"""Run by .ci/run or, for the demo, by hand before a release: they would run themselves here."""


def blocks(*languages: str) -> list:
    found = []
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            if match["language"] in languages:
                line = page.read_text()[: match.start()].count("\n") + 1
                found.append(pytest.param(match, id=f"{page.relative_to(REPOSITORY)}:{line}"))
    return found


@pytest.mark.stack
@pytest.mark.parametrize("block", blocks("python"))
def test_python(block: re.Match[str], tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block["text"])
    done = subprocess.run(
        [sys.executable, str(script)], cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("block", blocks("bash", "sh", "console"))
def test_shell(block: re.Match[str]) -> None:
    if block["note"]:
        assert block["note"].startswith("<!-- not run here: "), "say why the block is not run"
        return
    for line in block["text"].splitlines():
        command = line.split("#")[0].strip()
        assert not command or command in COMMANDS_OF_CI, f"{command!r} is neither run by the tests nor marked"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
