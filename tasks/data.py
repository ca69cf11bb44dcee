"""Prepare the dataset, find the model, and check that they fit together before anything expensive starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prefect import task

from agentfly_lib.configs import DataConfig, ModelConfig
from agentfly_lib.pipeline import preparation
from agentfly_lib.refs import DatasetRef, ModelRef
from tasks.options import RETRIED
from tasks.session import current_session

__all__ = ["check", "prepare", "resolve"]


@task(name="prepare", **RETRIED)
async def prepare(config: DataConfig, root: Path) -> DatasetRef:
    """Reads, validates and splits the dataset; instant when it was done before."""
    return await preparation.prepare(config, root)


@task(name="model", **RETRIED)
async def resolve(config: ModelConfig) -> ModelRef:
    """Finds the model directory; makes the small demo model if it is asked for and not there."""
    return await preparation.resolve(current_session(), config)


@task(name="check", **RETRIED)
async def check(dataset: DatasetRef, _: ModelRef) -> None:
    """Names, columns and lengths fit together, and there are GPUs enough; the model is the one that was resolved."""
    await asyncio.to_thread(preparation.check, current_session(), dataset)
