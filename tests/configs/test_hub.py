"""Only a recipe that names something from a hub may reach one, however its run is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentfly_lib.configs import RunConfig, load_config
from agentfly_lib.configs.hub import names_hub
from agentfly_lib.environment import make_home, prepare_environment, stay_offline

REPOSITORY = Path(__file__).resolve().parents[2]
HUB_MODEL = ("model.type=pretrained", "model.name_or_path=some/model")

VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def config(*changes: str) -> RunConfig:
    recipe = REPOSITORY / "recipes" / ("demo.toml" if changes[:1] != HUB_MODEL[:1] else "gsm8k-8gpu.toml")
    return load_config(recipe, changes)


def hub_data() -> RunConfig:
    values = config().model_dump(mode="json")
    return RunConfig.model_validate(values | {"data": {"type": "hub", "path": "some/data"}})


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)


def test_what_names_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not names_hub(config())
    assert names_hub(config(*HUB_MODEL))
    (tmp_path / "some" / "model").mkdir(parents=True)
    assert not names_hub(config(*HUB_MODEL)), "it is a directory here"
    assert names_hub(hub_data())


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    stay_offline()
    assert [os.environ[name] for name in VARIABLES] == ["0", "1"]


def test_nothing_is_written_before_prefect_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a run may do so where nothing can be written."""
    monkeypatch.setenv("PREFECT_HOME", "")  # so that it is taken back
    monkeypatch.delenv("PREFECT_HOME")
    root = tmp_path / "runs"
    prepare_environment(root)
    assert os.environ["PREFECT_HOME"] == str(root / "prefect")
    assert not root.exists()
    make_home()
    assert (root / "prefect").is_dir()


def test_a_server_leaves_it_to_the_flow_runs(tmp_path: Path) -> None:
    prepare_environment(tmp_path, offline=False)
    assert not [name for name in VARIABLES if name in os.environ]


@pytest.mark.parametrize(("changes", "offline"), [((), True), (HUB_MODEL, False)])
class TestAFlowRun:
    """As a worker starts it, without the command line."""

    async def test_of_prepare(self, changes: tuple[str, ...], offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        from flows import prepare

        seen = []

        async def prepared(*_: Any) -> None:
            seen.append([name in os.environ for name in VARIABLES])

        monkeypatch.setattr(prepare, "prepare_data", prepared)
        await prepare.prepare.fn(config(*changes))
        assert seen == [[offline, offline]]

    async def test_of_any_other(self, changes: tuple[str, ...], offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        from tasks import session

        seen = []

        @asynccontextmanager
        async def opened(*_: Any, **__: Any) -> AsyncIterator[None]:
            seen.append([name in os.environ for name in VARIABLES])
            yield None

        monkeypatch.setattr(session.opening, "open_session", opened)
        async with session.open_session(config(*changes)):
            pass
        assert seen == [[offline, offline]]


@pytest.mark.stack
def test_importing_a_flow_does_not_decide() -> None:
    """The libraries read the variables when they are imported, which is after a flow has its config."""
    code = (
        "import sys, flows.train, flows.evaluate, flows.collect, flows.prepare\n"
        "print([name for name in ('huggingface_hub', 'datasets', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
