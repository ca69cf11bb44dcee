"""Environment variables that other packages read when imported: telemetry off, hubs off, one home for local stores.

`prepare_environment` is called once by whoever owns the process (the command line, a test session), before prefect,
mlflow, ray or vllm are imported. A variable that the user has set is left as it is. `variables` sets some for a while.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["make_home", "prepare_environment", "stay_offline", "variables"]

_TELEMETRY_OFF = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_BEHAVIOUR = {
    "TOKENIZERS_PARALLELISM": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "agentfly_lib",
    # Prefect's default lets every page on the web that a browser has open ask its server, and so run code here.
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1:4200",
    # Threads of ours (tracking) log outside any flow run; Prefect would warn about each line.
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # The embedded API takes longer to start on a small machine than Prefect's own limit of 20 seconds.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # Ray hides GPUs from actors that ask for none; ours decide by config.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare_environment(root: Path, *, offline: bool = True, quiet: bool = False) -> None:
    """Sets what is not set yet.

    Args:
        root: Folder of all runs; Prefect's embedded database lies in `<root>/prefect` unless a server is named. Nothing
            is written there: what only reads a run works where it cannot write.
        offline: Keep Hugging Face libraries from reaching a hub.
        quiet: Only warnings of Prefect go to the terminal (its own log keeps everything).
    """
    home = root.resolve() / "prefect"
    values = dict(_TELEMETRY_OFF | _BEHAVIOUR)
    if "PREFECT_HOME" not in os.environ:
        values |= {
            "PREFECT_HOME": str(home),
            # Prefect derives these from its default home, not from PREFECT_HOME.
            "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
            "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        }
    if offline:
        stay_offline()
    if quiet:
        values |= {
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
            "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
            "MLFLOW_LOGGING_LEVEL": "WARNING",
        }
    for name, value in values.items():
        os.environ.setdefault(name, value)


def make_home() -> None:
    """Makes the folder that `prepare_environment` has named, before Prefect starts, which would not make `<root>`."""
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)


def stay_offline() -> None:
    """Keeps Hugging Face libraries from reaching a hub, if they are not imported yet and the user has not decided."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ.setdefault(name, "1")


@contextlib.contextmanager
def variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Variables as given, None for none, until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
