"""A private Ray ends with its driver, however the driver ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from agentfly_lib.cluster import gpu_count, start_ray
from agentfly_lib.configs import RayConfig
from agentfly_lib.errors import ConfigError
from agentfly_lib.watchdog import processes_using

DRIVER = """
import os, sys, tempfile
from agentfly_lib.cluster import start_ray
from agentfly_lib.configs import RayConfig

with start_ray(RayConfig(object_store_mib=80), cpus_needed=3, namespace="cluster-test"):
    import ray

    class Busy:
        def spin(self):
            while True:
                pass

        def ready(self):
            return True

    actor = ray.remote(Busy).options(name="busy", lifetime="detached").remote()
    ray.get(actor.ready.remote())
    actor.spin.remote()
    folder = ray._private.worker._global_node.get_session_dir_path().rsplit("/", 2)[0]
    assert ray.cluster_resources()["CPU"] >= 3
    print(folder, ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.readline()
try:
    ray.get_actor("busy", namespace="cluster-test")  # as a thread may that was left behind
except ray.exceptions.RaySystemError:
    assert not ray.is_initialized()
    print("ended", flush=True)
"""


@pytest.fixture
def driver():
    pytest.importorskip("ray")
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process
    process.kill()
    process.wait(10)


def gone(folder: Path, seconds: float) -> bool:
    """Whether the folder and every process that uses it are gone within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not folder.exists() and not processes_using(folder):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_no_process_and_no_folder(driver, end, listening):
    folder = Path(driver.stdout.readline().split()[0])
    assert folder.name.startswith("agentfly-")
    assert folder.stat().st_mode & 0o777 == 0o700
    processes = processes_using(folder)
    assert len(processes) >= 4
    assert {address for process in processes for address in listening(process)} == {"127.0.0.1"}
    driver.send_signal(end)
    driver.wait(20)
    assert gone(folder, 10)


CLIENT = """
import sys
from ray._raylet import GcsClient

print(len(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=None)))
"""


@pytest.mark.stack
@pytest.mark.slow
def test_a_private_ray_answers_nobody_without_its_token_and_leaves_nothing_when_its_driver_ends(driver):
    name, address = driver.stdout.readline().split()
    folder = Path(name)
    token = folder / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    nobody = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}

    def ask(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", CLIENT, address],
            env=nobody | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    without = ask()
    guessed = ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    ours = ask(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
    assert (without.returncode, guessed.returncode, ours.returncode) == (1, 1, 0), ours.stderr
    assert "AuthenticationError" in without.stderr
    assert "AuthenticationError" in guessed.stderr
    assert int(ours.stdout) > 0

    driver.stdin.write("\n")
    driver.stdin.flush()
    assert driver.stdout.readline().strip() == "ended"
    assert driver.wait(20) == 0
    assert gone(folder, 10)


@pytest.mark.stack
@pytest.mark.slow
def test_the_environment_is_as_before_when_a_private_ray_has_ended():
    pytest.importorskip("ray")
    script = """
import os
os.environ["RAY_AUTH_TOKEN"] = "of the user's own cluster"
before = dict(os.environ)
import ray
from agentfly_lib.cluster import start_ray
from agentfly_lib.configs import RayConfig
from ray._raylet import AuthenticationMode, get_authentication_mode

for _ in range(2):
    with start_ray(RayConfig(object_store_mib=80), cpus_needed=1, namespace="n"):
        assert get_authentication_mode() == AuthenticationMode.TOKEN
        assert ray.get(ray.remote(lambda: 7).remote()) == 7
    assert get_authentication_mode() != AuthenticationMode.TOKEN
changed = {name for name in before | dict(os.environ) if before.get(name) != os.environ.get(name)}
assert not [name for name in changed if name.startswith("RAY_AUTH")], changed
"""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}  # not the session's
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


class TestJoining:
    """What `ray.init` says when there is nothing to join, or it may not, as what the user can do."""

    @pytest.fixture
    def fake(self, monkeypatch):
        ray, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
        exceptions.AuthenticationError = type("AuthenticationError", (Exception,), {})
        ray.calls = []
        ray.is_initialized = lambda: False
        ray.init = lambda **options: ray.calls.append(options["address"])
        ray.shutdown = lambda: ray.calls.append("left")
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
        return ray

    @pytest.fixture
    def address(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            yield f"127.0.0.1:{listening.getsockname()[1]}"

    @staticmethod
    def join(address):
        with start_ray(RayConfig(address=address), cpus_needed=1, namespace="n"):
            return True

    def test_a_cluster_is_joined_and_left(self, fake, address):
        assert self.join(address)
        assert self.join("auto")  # which Ray finds by itself
        assert fake.calls == [address, "left", "auto", "left"]

    def test_nobody_listens(self, fake):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"ray\.address = {address}: no Ray cluster answers there"):
            self.join(address)
        assert fake.calls == [], "Ray would ask for minutes"

    @pytest.mark.parametrize("kind", [RuntimeError, ConnectionError, "AuthenticationError"])
    def test_it_may_not_join(self, fake, address, kind):
        kind = getattr(sys.modules["ray.exceptions"], kind) if isinstance(kind, str) else kind

        def refuse(**_):
            raise kind("No node info found")

        fake.init = refuse
        with pytest.raises(ConfigError, match=r"(?s)No node info found.*ray start --address=127.*--num-cpus=0"):
            self.join(address)
        assert fake.calls == ["left"]


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,3", 2), ("GPU-1a,GPU-2b", 2)])
def test_gpus_are_those_that_the_environment_shows(monkeypatch, visible, count):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == count
