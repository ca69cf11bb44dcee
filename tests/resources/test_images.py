"""What is pulled, and what never is."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import docker.errors
import pytest

from agentfly_lib.errors import SandboxUnavailableError
from agentfly_lib.resources.docker_engine import DockerEngine
from agentfly_lib.resources.images import ensure_image


class Empty:
    """An engine without images; it notes which are asked for elsewhere."""

    def __init__(self) -> None:
        self.pulled: list[str] = []
        api = SimpleNamespace(pull=self._pull)
        self.client = SimpleNamespace(images=SimpleNamespace(get=self._get), api=api)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _get(self, image: str) -> None:
        raise docker.errors.NotFound(image)

    def _pull(self, name: str, *, tag: str, **_: Any) -> list[dict[str, Any]]:
        self.pulled.append(f"{name}:{tag}")
        return []


def ensure(image: str, *, pull: bool = True) -> list[str]:
    engine = Empty()
    try:
        ensure_image(cast(DockerEngine, engine), image, pull=pull, progress=lambda _: None)
    finally:
        assert pull or engine.pulled == []
    return engine.pulled


def test_an_image_that_is_not_there_is_pulled() -> None:
    assert ensure("python:3.11-slim") == ["python:3.11-slim"]
    assert ensure("agentfly.example/mine") == ["agentfly.example/mine:latest"]
    assert ensure("registry.example/agentfly/worker-cpu:1") == ["registry.example/agentfly/worker-cpu:1"]


@pytest.mark.parametrize(
    "image",
    ["agentfly-sandbox", "agentfly/worker-cpu:0.1.0", "docker.io/agentfly/x", "docker.io/library/agentfly-sandbox"],
)
def test_one_of_ours_is_not_because_anybody_could_publish_it(image: str) -> None:
    with pytest.raises(SandboxUnavailableError, match="build it"):
        ensure(image)


def test_none_is_where_only_a_row_names_it() -> None:
    with pytest.raises(SandboxUnavailableError, match="the settings do not allow pulling it"):
        ensure("evil.example/x:latest", pull=False)
