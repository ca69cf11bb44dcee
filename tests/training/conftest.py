from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentfly_lib.refs import ModelRef


def _load_factories() -> ModuleType:
    name = "agentfly_training_test_factories"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("factories.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def factories() -> ModuleType:
    return _load_factories()


@pytest.fixture(scope="session")
def tiny_model(factories: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return factories.write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def vision_model(factories: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that sees."""
    return factories.write_vision_model(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture
def free_port() -> Callable[[], int]:
    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return find


@pytest.fixture
def learner(factories: ModuleType, tiny_model: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., Any]]:
    """Makes a one-rank learner in this process; the earlier one of the test is closed first."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from agentfly_lib.training.learner import LearnerRank

    alive: list[LearnerRank] = []

    def make(
        *,
        model: Path = tiny_model,
        fingerprint: str = "tiny",
        checkpoint: Any = None,
        keep: dict[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> LearnerRank:
        """`checkpoint` is where to go on from, `keep` the config's section of that name."""
        sections |= {"checkpoint": keep or {}}
        while alive:
            alive.pop().close()
        rank = LearnerRank()
        rank.setup(
            rank=0,
            world=1,
            address="127.0.0.1",
            port=free_port(),
            config=factories.run_config(**sections),
            model=ModelRef(path=model, fingerprint=fingerprint),
            checkpoint=checkpoint,
        )
        alive.append(rank)
        return rank

    yield make
    while alive:
        alive.pop().close()
