"""Addresses that servers of ours listen on: who can reach them, and by which name."""

from __future__ import annotations

import re

__all__ = ["is_loopback", "open_to_all", "reachable_host", "without_password"]


def is_loopback(host: str) -> bool:
    """Only this machine can reach the address."""
    return host in {"localhost", "::1"} or host.startswith("127.")


def reachable_host(host: str) -> str:
    """The address by which this machine's own processes reach a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104


def open_to_all(host: str, may: str) -> str:
    """The warning that is due where others can reach an address; `may` says what they can do then."""
    return f"warning: --host {host}: there is no authentication. Whoever reaches these ports can {may}"


def without_password(url: str) -> str:
    """An address as it may be shown."""
    return re.sub(r"(?<=://)([^:/@]*):[^@]*@", r"\1:***@", url)
