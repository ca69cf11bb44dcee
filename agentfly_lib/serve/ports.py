"""Whether a port can be had, and if not, who holds it."""

from __future__ import annotations

import socket

import psutil

from agentfly_lib.errors import UserError

__all__ = ["check_free", "check_host"]


def check_host(host: str) -> None:
    """Raises `UserError` if this machine has no such address."""
    with socket.socket(_family(host)) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise UserError(
                f"--host {host}: this machine cannot listen there ({error.strerror}); give one of its addresses, "
                "such as 127.0.0.1"
            ) from error


def check_free(host: str, port: int, option: str) -> None:
    """Raises `UserError`, naming the holder, if the port is taken; `option` chooses another."""
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"{host}:{port} cannot be used ({error.strerror}{_holder(port)}); choose another with {option} PORT"
            ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _holder(port: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                return "; a process of another user holds it"
            try:
                command = " ".join(psutil.Process(connection.pid).cmdline())
            except psutil.Error:
                command = ""
            return f"; process {connection.pid} holds it: {command[:80]}".rstrip(": ")
    return ""
