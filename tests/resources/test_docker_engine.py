"""What a Docker engine that fails or hangs costs us; the engine is a fake that does so as it is told."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from agentfly_lib.errors import InfrastructureError
from agentfly_lib.resources.docker_engine import DockerEngine
from agentfly_lib.resources.owner import this_owner

docker_errors = pytest.importorskip("docker.errors")


class FakeApi:
    """Containers that a process of run `r` has left. What is named in `broken` fails."""

    def __init__(self, *names: str) -> None:
        self.there = list(names)
        self.asked: list[str] = []
        self.broken: dict[str, Exception] = {}

    def containers(self, **_: object) -> list[dict[str, Any]]:
        self._ask("list")
        labels = dataclasses.replace(this_owner(), run="r", boot="an earlier one").labels()
        return [{"Id": name, "Names": [name], "Image": "i", "Status": "s", "Labels": labels} for name in self.there]

    def remove_container(self, name: str, **_: object) -> None:
        self._ask(name)
        self.there.remove(name)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what in self.broken:
            raise self.broken[what]


@pytest.fixture
def api() -> FakeApi:
    return FakeApi("a", "b", "c")


@pytest.fixture
def engine(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> DockerEngine:
    monkeypatch.setattr("atexit.register", lambda function: None)
    return DockerEngine(SimpleNamespace(api=api), "fake")  # type: ignore[arg-type]


@pytest.mark.parametrize("silent", ["list", "b"])
def test_what_a_killed_process_left_is_looked_for_again_if_the_engine_did_not_answer(engine, api, silent):
    api.broken[silent] = TimeoutError()
    with pytest.raises(InfrastructureError, match="does not answer"):
        engine.reap_once("r")
    api.broken.clear()
    engine.reap_once("r")
    assert api.there == []
    asked = len(api.asked)
    engine.reap_once("r")
    assert len(api.asked) == asked


def test_a_left_container_that_cannot_be_removed_yet_keeps_nobody_from_starting_another(engine, api):
    api.broken["a"] = docker_errors.APIError("removal of container a is already in progress")
    engine.reap_once("r")
    assert api.there == ["a"]
    api.broken.clear()
    api.there.append("another")
    engine.remove("another")
    assert api.there == []


def test_the_end_of_the_process_waits_for_a_silent_engine_once(engine, api):
    for name in api.there:
        engine.started(name)
        api.broken[name] = TimeoutError()
    engine._bury_all()
    assert len(api.asked) == 1


def test_the_end_of_the_process_removes_the_others_where_one_cannot_be(engine, api):
    for name in api.there:
        engine.started(name)
    api.broken["a"] = docker_errors.APIError("it is stuck")
    engine._bury_all()
    assert api.there == ["a"]
