"""The preparation flow: a recipe's dataset, read, checked, split and cached."""

from __future__ import annotations

from prefect import flow

from agentfly_lib.configs.hub import names_hub
from agentfly_lib.configs.load import FlowConfig
from agentfly_lib.environment import stay_offline
from agentfly_lib.refs import DatasetRef
from tasks.data import prepare as prepare_data

__all__ = ["prepare"]


@flow(name="prepare", flow_run_name="prepare-{config.run.name}", persist_result=False)
async def prepare(config: FlowConfig) -> DatasetRef:
    """Prepares the dataset, so that a training run that follows finds it."""
    if not names_hub(config):
        stay_offline()
    return await prepare_data(config.data, config.run.root)
