"""How long engines may take for an update is a key of the config, and whoever reaches it hears which."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

import ray.exceptions

from agentfly_lib.configs import InferenceConfig
from agentfly_lib.errors import EngineError
from agentfly_lib.inference import actor
from agentfly_lib.refs import EngineRef
from agentfly_lib.types import Canary

ENGINES = EngineRef(names=("engine-0",), namespace="n", policy_version=0)
CANARY = Canary(token_ids=(1, 2), logprobs=(-1.0,))


class Silent:
    """An engine that answers nothing."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *_: name)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each call was waited for."""
    found: list[float] = []

    def get(_: Any, timeout: float) -> None:
        found.append(timeout)
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(actor, "find_engine", lambda name, namespace: Silent())
    monkeypatch.setattr(ray, "get", get)
    return found


CALLS = {
    "load_weights": lambda **named: actor.load_weights(ENGINES, Path("w"), version=1, canary=None, **named),
    "open_transfer": lambda **named: actor.open_transfer(ENGINES, [{}], **named),
    "logprobs": lambda **named: actor.prove(ENGINES, CANARY, tolerance=1e-3, **named),
    "wake": lambda **named: actor.wake_engines(ENGINES, **named),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_message_names_the_key(call: str, waited: list[float]) -> None:
    with pytest.raises(EngineError, match=f"did not answer '{call}' within 7 s; .* raise inference.update_timeout_sec"):
        CALLS[call](seconds=7.0)
    assert waited == [7.0]


@pytest.mark.parametrize("call", CALLS)
def test_unsaid_it_is_the_config_s_default(call: str, waited: list[float]) -> None:
    with pytest.raises(EngineError):
        CALLS[call]()
    assert waited == [InferenceConfig().update_timeout_seconds]
