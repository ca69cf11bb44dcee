"""The chat format of a run, which turns its tokens into text."""

from __future__ import annotations

from pydantic import ValidationError

from agentfly_lib.chat import ChatFormat
from agentfly_lib.configs import load_config
from agentfly_lib.errors import ModelError
from agentfly_lib.refs import ModelRef
from agentfly_lib.store.atomic import read_json
from agentfly_lib.store.layout import RunDirectory

__all__ = ["run_chat"]


def run_chat(run: RunDirectory) -> ChatFormat:
    """The format of the run's own model and recipe. Raises an `AgentFlyError` if one of them is not there any more."""
    try:
        model = ModelRef.model_validate(read_json(run.model_file))
    except ValidationError as error:
        raise ModelError(f"{run.model_file} does not name a model: {error}") from error
    return ChatFormat.from_pretrained(model.path, template=load_config(run.config_file).agent.template)
