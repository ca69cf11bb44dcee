"""Which deployment trains a recipe, with which parameters, and what is refused before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import WorkerStatus
from prefect.exceptions import ObjectNotFound

from agentfly_lib.errors import ConfigError
from tasks import trigger as module
from tasks.trigger import FlowRunEnd, trigger


class FakeServer:
    """A server with deployments; flow runs go through the states that a test gives."""

    def __init__(self, folder: Path) -> None:
        self.workers: list[WorkerStatus] | None = [WorkerStatus.OFFLINE, WorkerStatus.ONLINE]
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.states: list[str] = ["Completed"]
        self.deployments = [
            self.deployment("demo", folder, {"recipe": "recipes/demo.toml", "run": {"name": "demo-deployed"}}),
            self.deployment("recipe", folder, {"run": {"root": "/far/runs"}}),
            self.deployment("checkpoint", folder, {}, entrypoint="flows/evaluate.py:evaluate"),
        ]

    def deployment(self, name: str, folder: Path, config: dict[str, Any], **changes: Any) -> SimpleNamespace:
        steps = [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}]
        values = {"id": uuid4(), "name": name, "parameters": {"config": config}, "pull_steps": steps}
        return SimpleNamespace(
            **{**values, "entrypoint": "flows/train.py:train", "work_pool_name": "agentfly", **changes}
        )

    async def read_deployments(self) -> list[SimpleNamespace]:
        return self.deployments

    async def read_workers_for_work_pool(self, pool: str) -> list[SimpleNamespace]:
        assert pool == "agentfly"
        if self.workers is None:
            raise ObjectNotFound(http_exc=Exception())
        return [SimpleNamespace(status=status) for status in self.workers]

    async def create_flow_run_from_deployment(self, identity: Any, *, parameters: dict[str, Any]) -> SimpleNamespace:
        (name,) = [entry.name for entry in self.deployments if entry.id == identity]
        self.created.append((name, parameters["config"]))
        return SimpleNamespace(id=uuid4(), name="quick-fox")

    async def read_flow_run(self, _: Any) -> SimpleNamespace:
        name = self.states.pop(0)
        if name == "gone":
            raise httpx.ConnectError("refused")
        final = name in ("Completed", "Failed", "Cancelled", "Crashed")
        return SimpleNamespace(state=SimpleNamespace(name=name, message="why", is_final=lambda: final))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").mkdir()
    for name in ("demo", "ci"):
        (tmp_path / "recipes" / f"{name}.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    fake = FakeServer(folder)

    @asynccontextmanager
    async def client() -> Any:
        yield fake

    monkeypatch.setattr(module, "get_client", client)
    monkeypatch.setattr(module, "url_for", lambda run: f"http://page/{run.name}")
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    return fake


async def run(recipe: str, changes: dict[str, Any] | None = None, **options: Any) -> tuple[FlowRunEnd, list[str]]:
    said: list[str] = []
    api = "http://127.0.0.1:4200/api"
    values: dict[str, Any] = {
        "files": {},
        "name": None,
        "served": api,
        "root": Path("elsewhere"),
        "wait": False,
    } | options
    return await trigger(Path(recipe), changes or {}, say=said.append, **values), said


async def test_the_deployment_of_the_recipe_with_its_own_values(server: FakeServer) -> None:
    ended, said = await run("recipes/demo.toml", {"optim": {"lr": 1e-4}})
    expected = {"recipe": "recipes/demo.toml", "run": {"name": "demo-deployed"}, "optim": {"lr": 1e-4}}
    assert server.created == [("demo", expected)]
    assert said == ["train/demo: quick-fox\nhttp://page/quick-fox"]
    assert ended.state == "Scheduled"


async def test_any_other_recipe_keeps_only_where_runs_lie(server: FakeServer) -> None:
    await run("recipes/ci.toml", {"run": {"name": "mine"}})
    expected = {"recipe": "recipes/ci.toml", "run": {"root": "/far/runs", "name": "mine"}}
    assert server.created == [("recipe", expected)]


async def test_a_named_deployment_with_another_recipe_does_not_take_its_name(server: FakeServer) -> None:
    await run("recipes/ci.toml", name="demo")
    assert server.created == [("demo", {"recipe": "recipes/ci.toml"})]


async def test_paths_are_those_of_the_worker(server: FakeServer, folder: Path, tmp_path_factory: Any) -> None:
    far = tmp_path_factory.mktemp("far") / "mine.toml"
    far.touch()
    await run(str(folder / "recipes" / "ci.toml"))
    await run(str(far))
    for entry in server.deployments:  # a worker in a container, whose folder is not here
        entry.pull_steps = [{"prefect.deployments.steps.set_working_directory": {"directory": "/srv/nowhere"}}]
    await run("recipes/ci.toml")
    assert [config["recipe"] for _, config in server.created] == ["recipes/ci.toml", str(far), "recipes/ci.toml"]


async def test_it_follows_a_run_to_its_end_over_a_server_that_is_away(server: FakeServer) -> None:
    server.states = ["Pending", "Running", "gone", "Running", "Failed"]
    ended, said = await run("recipes/ci.toml", wait=True)
    assert ended.state == "Failed"
    assert said[1:] == [
        "Pending: why",
        "Running: why",
        "the server does not answer (ConnectError); the run goes on, and is asked for again",
        "Failed: why",
    ]


class TestRefusals:
    async def test_no_server(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module.PREFECT_API_URL, "value", lambda: None, raising=False)
        with pytest.raises(ConfigError, match=r"needs a Prefect server.*agentfly serve --root elsewhere"):
            await run("recipes/ci.toml", served=None)

    async def test_a_server_that_does_not_answer(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match=r"no Prefect server answers at http://127\.0\.0\.1:9/api"):
            await run("recipes/ci.toml", served="http://127.0.0.1:9/api")

    async def test_no_such_deployment(self, server: FakeServer) -> None:
        with pytest.raises(ConfigError, match="has no deployment train/dmeo; it has demo, recipe"):
            await run("recipes/ci.toml", name="dmeo")
        server.deployments = []
        with pytest.raises(ConfigError, match="has no deployment train/recipe; it has none"):
            await run("recipes/ci.toml")

    async def test_a_file_that_is_here_and_not_where_flow_runs_work(
        self, server: FakeServer, folder: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = tmp_path_factory.mktemp("mine")
        (mine / "train.jsonl").touch()
        monkeypatch.chdir(mine)
        with pytest.raises(
            ConfigError, match=rf"data\.train = train\.jsonl: .* name its whole path, {mine}/train\.jsonl"
        ):
            await run("recipe.toml", files={"data.train": Path("train.jsonl")})
        with pytest.raises(ConfigError, match=r"data\.eval = eval\.jsonl: .* set data\.eval to an existing file"):
            await run("recipe.toml", files={"data.eval": Path("eval.jsonl")})
        assert server.created == []
        (folder / "eval.jsonl").touch()
        await run("recipe.toml", files={"data.train": mine / "train.jsonl", "data.eval": Path("eval.jsonl")})
        for entry in server.deployments:  # a worker in a container: its files are not seen from here
            entry.pull_steps = [{"prefect.deployments.steps.set_working_directory": {"directory": "/srv/nowhere"}}]
        await run("recipe.toml", files={"data.train": Path("train.jsonl")})
        assert len(server.created) == 2

    @pytest.mark.parametrize("workers", [None, [], [WorkerStatus.OFFLINE]])
    async def test_no_worker(self, server: FakeServer, workers: list[WorkerStatus] | None) -> None:
        server.workers = workers
        with pytest.raises(ConfigError, match="no worker is online for the work pool 'agentfly' of train/recipe"):
            await run("recipes/ci.toml")
        assert server.created == []
