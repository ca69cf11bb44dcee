"""What tests of several areas share: one private Ray for the whole session, because a process can have only one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentfly_lib.configs import RayConfig


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    pytest.importorskip("ray")
    from agentfly_lib.cluster import start_ray

    with start_ray(RayConfig(), cpus_needed=8, namespace="tests"):
        yield
