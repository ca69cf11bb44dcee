"""Ray, where the long-lived parts live: a cluster that is joined, or a private one on this machine.

A private one listens on 127.0.0.1 only, has no dashboard, sends no usage data, and keeps its files in a folder of its
own under /tmp. Other users of the machine can reach that address, so every call must carry a token, which lies in that
folder. It ends with the `with` block, or, through a watchdog, within seconds of a `kill -9` of this process.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentfly_lib import watchdog
from agentfly_lib.configs.run import RayConfig
from agentfly_lib.environment import variables
from agentfly_lib.errors import ConfigError
from agentfly_lib.ray_calls import named_actors

__all__ = ["Bundle", "bundle_gpus", "bundle_options", "end_actors", "gpu_count", "private_folder", "start_ray"]

logger = logging.getLogger(__name__)

_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an actor without GPUs keeps the environment that we give it
}
_GROUP_SECONDS = 120.0
"""So long a run waits for its GPUs."""
_ANSWER_SECONDS = 10.0
_PROBE_SHARE = 0.01
_group_lock = threading.Lock()
_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Without a cluster Ray serves on 127.0.0.1; asked for that address by name it would listen everywhere all the same."""


class Bundle(NamedTuple):
    """What is reserved together on one machine."""

    gpus: int
    cpus: int


@contextlib.contextmanager
def start_ray(config: RayConfig, *, cpus_needed: int, namespace: str) -> Iterator[None]:
    """Connect this process to Ray for the length of the block.

    `cpus_needed` is how many actors and tasks must run side by side, each claiming one processor; a private Ray offers
    at least so many, however few cores there are. A connection that this process has already is used and kept.

    Raises:
        ConfigError: no cluster answers at `config.address`, or it lets this process not join: it runs other versions of
            Python or Ray, asks for a token, or has no node on this machine.
    """
    loaded = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        yield
    elif config.address is not None:
        with variables(_RAY_ENVIRONMENT):
            _join(config.address, namespace)
            import ray

            try:
                yield
            finally:
                ray.shutdown()
    else:
        with variables(_RAY_ENVIRONMENT | _LOOPBACK_ONLY), private_folder() as folder, _token(folder):
            import ray
            from ray._private import ray_constants

            _never_again_by_itself()
            ray_constants.ENABLE_RAY_CLUSTER = False  # what `_LOOPBACK_ONLY` says, had Ray been imported before
            ray.init(
                num_cpus=max(cpus_needed, os.cpu_count() or 1),
                namespace=namespace,
                include_dashboard=False,
                object_store_memory=config.object_store_mib * 2**20,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder / "ray"),  # Ray opens its own folder to everyone
            )
            try:
                yield
            finally:
                ray.shutdown()


def _join(address: str, namespace: str) -> None:
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in address:  # Ray itself would ask for minutes, and then end the process
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            raise ConfigError(
                f"ray.address = {address}: no Ray cluster answers there ({error}); start it (ray start --head), or "
                "leave ray.address out to use this machine alone"
            ) from error
    import ray
    from ray.exceptions import AuthenticationError

    _never_again_by_itself()
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (AuthenticationError, ConnectionError, RuntimeError) as error:
        ray.shutdown()
        raise ConfigError(
            f"ray.address = {address}: the cluster cannot be joined from here: {error}\nA run joins from a node of the "
            f"cluster (ray start --address={address}; --num-cpus=0 if it is to compute nothing), with the same Python "
            "and Ray, and the cluster's token"
        ) from error


def _never_again_by_itself() -> None:
    """A thread that asks Ray after it was left would otherwise start another, which listens to everybody."""
    from ray._private import auto_init_hook

    auto_init_hook.enable_auto_connect = False


def end_actors(namespace: str) -> None:
    """Ends every named actor of a namespace and frees its GPUs; quiet if there is none, or Ray has ended."""
    import ray

    if not ray.is_initialized():
        return
    for handle in named_actors(namespace).values():
        ray.kill(handle, no_restart=True)
    with contextlib.suppress(ValueError):  # a run without GPUs has no group
        ray.util.remove_placement_group(ray.util.get_placement_group(f"{namespace}-gpus"))


def bundle_options(bundles: tuple[Bundle, ...], index: int, *, namespace: str) -> dict[str, Any]:
    """Ray options that put an actor into a bundle of the namespace's placement group, which is made if it is not there.

    The group reserves all of its bundles, or none.

    Raises `ConfigError` if the cluster has not so many free ones within two minutes.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(
        placement_group=_gpu_group(bundles, namespace),
        placement_group_bundle_index=index,
        placement_group_capture_child_tasks=False,
    )
    return {"scheduling_strategy": strategy}


def bundle_gpus(bundles: tuple[Bundle, ...], indices: tuple[int, ...], *, namespace: str) -> list[str]:
    """What the GPUs of bundles of one GPU each are called on their machine, however many share them.

    Raises `ConfigError` if they do not lie on one machine.
    """
    import ray

    @ray.remote(num_cpus=0, num_gpus=_PROBE_SHARE, max_retries=0)
    def look() -> tuple[str, list[str]]:
        context = ray.get_runtime_context()
        return context.get_node_id(), [str(each) for each in context.get_accelerator_ids()["GPU"]]

    seen = ray.get(
        [look.options(**bundle_options(bundles, index, namespace=namespace)).remote() for index in indices],
        timeout=_GROUP_SECONDS,
    )
    if len({node for node, _ in seen}) > 1:
        raise ConfigError(
            f"an engine over {len(indices)} GPUs must have them on one machine; lower inference.tensor_parallel to "
            "what one machine has"
        )
    return [name for _, names in seen for name in names]


def _gpu_group(bundles: tuple[Bundle, ...], namespace: str) -> Any:
    import ray

    name = f"{namespace}-gpus"
    wanted = [{"GPU": float(bundle.gpus), "CPU": float(bundle.cpus)} for bundle in bundles]
    with _group_lock:
        with contextlib.suppress(ValueError):
            group = ray.util.get_placement_group(name)
            if [{key: each.get(key, 0.0) for key in ("GPU", "CPU")} for each in group.bundle_specs] == wanted:
                return group
            ray.util.remove_placement_group(group)
        group = ray.util.placement_group(wanted, strategy="PACK", name=name, lifetime="detached")
        if not group.wait(_GROUP_SECONDS):
            ray.util.remove_placement_group(group)
            raise ConfigError(
                f"the run needs {sum(bundle.gpus for bundle in bundles)} GPUs and "
                f"{sum(bundle.cpus for bundle in bundles)} processors; the cluster has {gpu_count()} GPUs, and not "
                f"enough of both were free within {_GROUP_SECONDS:g} s"
            )
        return group


def gpu_count() -> int:
    """GPUs that can be had: the cluster's if this process is connected to Ray, else this machine's."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return int(ray.cluster_resources().get("GPU", 0))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


@contextlib.contextmanager
def private_folder(parent: Path | None = None, *, prefix: str = "agentfly-") -> Iterator[Path]:
    """A private folder, with a watchdog that ends what uses it after us, and removes it.

    parent: where; without one under /tmp, for Ray, whose socket paths must be short.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent or "/tmp"))  # noqa: S108 - private, and short
    command = [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as dog:
        try:
            yield folder
        finally:
            assert dog.stdin is not None
            dog.stdin.close()  # the watchdog ends what is left, removes the folder, and goes
            try:
                dog.wait(timeout=30)
            except subprocess.TimeoutExpired:
                logger.warning("processes may still use the private folder %s, which is left", folder)
                dog.kill()


@contextlib.contextmanager
def _token(folder: Path) -> Iterator[None]:
    """A new token, in a file of the folder: with it this process and its children, and nobody else, can use Ray."""
    path = folder / "token"
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(secrets.token_hex(32))
    try:
        # A token in RAY_AUTH_TOKEN would go before the file.
        with variables({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path), "RAY_AUTH_TOKEN": None}):
            _read_authentication()
            yield
    finally:
        _read_authentication()


def _read_authentication() -> None:
    """Ray read these variables when it was imported; now it reads them again."""
    from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue] - compiled

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
