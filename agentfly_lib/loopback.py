"""Addresses that servers of ours listen on: who can reach them, and by which name."""

from __future__ import annotations

import ipaddress
import re

__all__ = ["VIEWER_PORT", "is_loopback", "names_of", "open_to_all", "reachable_host", "without_password"]

VIEWER_PORT = 8300
"""Of `agentfly view`, unless told otherwise."""
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  asked for by name
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


def is_loopback(host: str) -> bool:
    """Only this machine can reach the address. A name may lead anywhere, but for that of the interface itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> tuple[str, ...] | None:
    """What requests to a server on this address call it; None if it can be reached by any name.

    By another name a page of somebody else's could reach it, and read along (DNS rebinding).
    """
    return None if host in _EVERYWHERE else (*_LOCAL, f"[{host}]" if ":" in host else host.lower())


def reachable_host(host: str) -> str:
    """The address by which this machine's own processes reach a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104


def open_to_all(host: str, may: str) -> str:
    """The warning that is due where others can reach an address; `may` says what they can do then."""
    return f"warning: --host {host}: there is no authentication. Whoever reaches these ports can {may}"


def without_password(url: str) -> str:
    """An address as it may be shown."""
    return re.sub(r"(?<=://)([^:/@]*):[^@]*@", r"\1:***@", url)
