"""Sandboxes need bubblewrap, and a machine that lets it make namespaces."""

from __future__ import annotations

import asyncio

import pytest

from agentfly_lib.errors import SandboxUnavailableError
from agentfly_lib.resources import ProcessSpec, open_process


@pytest.fixture(scope="session")
def sandboxes() -> None:
    """Skips where no sandbox can be had, with what the library itself says about it."""

    async def start() -> None:
        async with open_process(ProcessSpec()):
            pass

    try:
        asyncio.run(start())
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
