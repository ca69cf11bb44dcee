"""The few questions to a Prefect server that tell whether it, a pool, a worker and the deployments are there.

Prefect's own client belongs to flows and tasks; these are plain requests of its REST API, each bounded in time.
"""

from __future__ import annotations

import os
from typing import Any

import httpx

__all__ = ["PrefectAPI"]

_SECONDS = 10.0


class PrefectAPI:
    """One server, by the address of its API (`http://127.0.0.1:4200/api`)."""

    def __init__(self, url: str) -> None:
        headers = {}
        if key := os.environ.get("PREFECT_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        elif login := os.environ.get("PREFECT_API_AUTH_STRING"):
            import base64

            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        self.url = url
        self._client = httpx.Client(base_url=url.rstrip("/") + "/", headers=headers, timeout=_SECONDS, trust_env=False)

    def healthy(self) -> bool:
        """The server answers."""
        try:
            return self._client.get("health").status_code == 200
        except httpx.HTTPError:
            return False

    def pool_exists(self, pool: str) -> bool:
        """The work pool is there."""
        try:
            return self._client.get(f"work_pools/{pool}").status_code == 200
        except httpx.HTTPError:
            return False

    def workers_online(self, pool: str) -> int:
        """Workers of a pool that have shown a sign of life of late; 0 if the server does not answer."""
        try:
            found = self._client.post(f"work_pools/{pool}/workers/filter", json={})
        except httpx.HTTPError:
            return 0
        return sum(worker["status"] == "ONLINE" for worker in found.json()) if found.status_code == 200 else 0

    def deployments(self) -> set[str]:
        """Names of the registered deployments, without those of their flows."""
        found = self._client.post("deployments/filter", json={"limit": 200})
        found.raise_for_status()
        return {str(entry["name"]) for entry in found.json()}

    def limit_queue(self, pool: str, queue: str, limit: int) -> None:
        """So many flow runs of a queue at a time; the queue is made if it is not there."""
        path = f"work_pools/{pool}/queues"
        body: dict[str, Any] = {"concurrency_limit": limit}
        found = self._client.get(f"{path}/{queue}")
        if found.status_code == 404:
            done = self._client.post(path, json={"name": queue, **body})
        else:
            done = self._client.patch(f"{path}/{queue}", json=body)
        done.raise_for_status()
