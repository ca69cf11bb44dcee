"""How the command ends: its exit status and one clear message, by what ended it."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import NoReturn

import pytest
import typer

from agentfly_lib import cli
from agentfly_lib.errors import ConfigError, EngineError


class Terminated(BaseException):
    """As what Prefect's handler of SIGTERM raises."""

    signal = signal.SIGTERM


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ConfigError("optim.lr = x"), 2, "error: optim.lr = x"),
        (EngineError("no memory"), 1, "EngineError: no memory\nNothing that was finished is lost"),
        (ExceptionGroup("two", [OSError(), EngineError("no memory")]), 1, "EngineError: no memory"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to go on"),
        (asyncio.CancelledError(), 143, "ended by SIGTERM; run the same command again to go on"),
        (Terminated(), 143, "ended by SIGTERM; run the same command again to go on"),
        (SystemExit(7), 7, ""),
    ],
)
def test_exit_status(
    error: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("own", "expected"),
    [(None, "interrupted; run the same command again to go on\n"), ("it goes on elsewhere", "it goes on elsewhere\n")],
)
def test_ctrl_c_in_a_command(
    own: str | None, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer hears of it before we do; a command that says something itself is not spoken over."""
    app = typer.Typer()

    @app.command()
    def command() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if own is None:
                raise
            typer.echo(own, err=True)
            sys.exit(130)

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["agentfly"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == expected


def test_a_mistake_of_ours_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main()
