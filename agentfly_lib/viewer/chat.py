"""The chat format of a run, which turns its tokens into text."""

from __future__ import annotations

from agentfly_lib.chat import ChatFormat
from agentfly_lib.configs import load_config
from agentfly_lib.refs import ModelRef
from agentfly_lib.store.atomic import read_model
from agentfly_lib.store.layout import RunDirectory

__all__ = ["run_chat"]


def run_chat(run: RunDirectory) -> ChatFormat:
    """The format of the run's own model and recipe. Raises an `AgentFlyError` if one of them is not there any more."""
    model = read_model(run.model_file, ModelRef, remedy="restore it from a copy")
    return ChatFormat.from_pretrained(model.path, template=load_config(run.config_file).agent.template)
