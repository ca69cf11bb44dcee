"""A recipe is stored, shown and logged, so that no part of it takes a password."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentfly_lib.configs import load_config
from agentfly_lib.errors import ConfigError

RECIPE = Path(__file__).parents[2] / "recipes" / "demo.toml"


@pytest.mark.parametrize(
    "override",
    [
        "tracking.uri=postgresql://u:pw@db/mlflow",
        "tracking.uri=https://u:pw@mlflow.example",
        "ray.address=ray://u:pw@head:10001",
        'agent.mcp_servers=[{url="https://token@mcp.example/mcp"}]',
        'agent.mcp_servers=[{url="https://mcp.example/mcp", headers={Authorization="Bearer x"}}]',
        'agent.mcp_servers=[{url="https://mcp.example/mcp", headers={X-Api-Key="x"}}]',
        'agent.mcp_servers=[{url="https://mcp.example/mcp", headers={Cookie="x"}}]',
        'agent.tool_settings.web_search.provider={type="searxng", url="http://u:pw@127.0.0.1:8888/search"}',
        'agent.reward={name="llm_judge", settings={base_url="https://u:pw@judge.example/v1", model="x"}}',
    ],
)
def test_it_takes_none(override: str) -> None:
    with pytest.raises(ConfigError, match=r"is stored and shown") as refused:
        load_config(RECIPE, [override])
    assert not re.search(r"pw|token@|Bearer|'x'", str(refused.value))


def test_none_is_shown_where_another_key_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"unknown key tracking.uro \(value \*\*\*\): did you mean tracking.uri"):
        load_config(RECIPE, ["tracking.uro=https://u:pw@mlflow.example"])


@pytest.mark.parametrize(
    "override",
    [
        "tracking.uri=postgresql://user@db/mlflow",
        "tracking.uri=http://127.0.0.1:5000/a@b",
        "run.name=a-name",
        'agent.mcp_servers=[{url="https://mcp.example/@scope/mcp", headers={X-Tokenizer="x"}}]',
        'agent.mcp_servers=[{url="https://mcp.example/mcp", headers_env={X-Api-Key="KEY"}}]',
    ],
)
def test_what_only_looks_like_one_is_taken(override: str) -> None:
    load_config(RECIPE, [override])
