"""A port that is taken is named with its holder before anything starts."""

from __future__ import annotations

import os
import socket

import pytest

from agentfly_lib.errors import UserError
from agentfly_lib.loopback import is_loopback, reachable_host
from agentfly_lib.serve.ports import check_free, check_host


def test_a_taken_port_and_who_holds_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as refused:
            check_free("127.0.0.1", port, "--prefect-port")
    assert f"127.0.0.1:{port} cannot be used (Address already in use" in str(refused.value)
    assert f"process {os.getpid()} holds it: " in str(refused.value)
    assert "choose another with --prefect-port PORT" in str(refused.value)
    check_free("127.0.0.1", port, "--prefect-port")


def test_an_address_of_another_machine() -> None:
    check_host("127.0.0.1")
    check_host("0.0.0.0")
    with pytest.raises(UserError, match=r"--host 192\.0\.2\.1: this machine cannot listen there"):
        check_host("192.0.2.1")
    with pytest.raises(UserError, match=r"--host no such name: this machine cannot listen there"):
        check_host("no such name")


@pytest.mark.parametrize(
    ("host", "own", "reached"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("localhost", True, "localhost"),
        ("::1", True, "[::1]"),
        ("0.0.0.0", False, "127.0.0.1"),
        ("::", False, "[::1]"),
        ("10.1.2.3", False, "10.1.2.3"),
        ("127.0.0.2", True, "127.0.0.2"),
        ("127.0.0.1.example.org", False, "127.0.0.1.example.org"),
    ],
)
def test_who_reaches_an_address(host: str, own: bool, reached: str) -> None:
    assert (is_loopback(host), reachable_host(host)) == (own, reached)
