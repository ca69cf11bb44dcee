"""Prefect's embedded server does not hear the terminal's Ctrl-C."""

from __future__ import annotations

import os
import subprocess

import httpx
import pytest
from prefect.server.api import server as embedded
from prefect.server.api.server import SubprocessASGIServer

from tasks.shelter import sheltered_server


def test_the_embedded_server_has_a_session_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    # Where it belongs is known as soon as it is started: nobody waits until it answers.
    well = httpx.Response(200, request=httpx.Request("GET", "http://server/health"))
    monkeypatch.setattr(httpx.Client, "get", lambda *_: well)
    with sheltered_server():
        server = SubprocessASGIServer()
        server.start(timeout=120)
        try:
            assert server.server_process is not None
            assert os.getsid(server.server_process.pid) != os.getsid(0)
        finally:
            server.stop()


def test_nothing_is_left_of_it_after_the_block():
    with pytest.raises(KeyError), sheltered_server():
        raise KeyError
    assert embedded.subprocess is subprocess
