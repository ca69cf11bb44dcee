"""Control groups for sandboxed processes: limits over all processes of a sandbox together, kept by the kernel.

They are used where this process may make them (version 2, or version 1 with its controllers mounted; usually as root,
or in a subtree that was delegated), and sandboxes do without where it may not. A group's folder bears its owner's name,
so that one that a killed process has left can be found; the kernel keeps none over a reboot.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentfly_lib.resources.owner import Owner, this_owner

__all__ = ["ControlGroup", "can_be_made", "left_groups"]

_CPU_PERIOD = 100_000
_PREFIX = "agentfly-"
_REMOVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One folder (version 2), or one for each controller (version 1)."""

    folders: tuple[Path, ...]

    @classmethod
    def make(cls, *, memory_bytes: int, processes: int, cpus: float | None) -> ControlGroup | None:
        """A group with these limits; None where it cannot be had."""
        places = _places()
        if places is None:
            return None
        _reap_once()
        name = _name(this_owner())
        group = cls(tuple(dict.fromkeys(place / name for place in places.values())))
        try:
            for folder in group.folders:
                folder.mkdir()
            for file, value in _limits(set(places), memory_bytes, processes, cpus).items():
                controller = file.split(".")[0]
                _write(places["unified" if "unified" in places else controller] / name / file, value)
        except OSError:
            group.remove()
            return None
        return group

    @property
    def entries(self) -> list[str]:
        """Files into which a process writes its id to belong to the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def remove(self) -> None:
        """Kills what is still inside, and removes the group; blocking, for a short and bounded time."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder in self.folders:
            while folder.exists():
                with contextlib.suppress(OSError):
                    for pid in (folder / "cgroup.procs").read_text().split():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)


def can_be_made() -> bool:
    """This process may make groups; without, sandboxes have their limits of memory and processor for each process."""
    return _places() is not None


def left_groups() -> list[tuple[ControlGroup, Owner]]:
    """Groups with our name, whoever made them, and whose they are."""
    found: dict[str, list[Path]] = {}
    for place in dict.fromkeys((_places() or {}).values()):
        for folder in place.glob(f"{_PREFIX}*"):
            found.setdefault(folder.name, []).append(folder)
    return [
        (ControlGroup(tuple(folders)), owner) for name, folders in found.items() if (owner := _owner(name)) is not None
    ]


@functools.cache
def _reap_once() -> None:
    """Removes what killed processes have left, of whatever run: it is empty, and nobody's."""
    for group, owner in left_groups():
        if owner.gone:
            group.remove()


def _name(owner: Owner) -> str:
    namespace = "".join(filter(str.isdigit, owner.namespace))
    return f"{_PREFIX}{owner.pid}-{owner.started}-{namespace}-{secrets.token_hex(6)}"


def _owner(name: str) -> Owner | None:
    """The kernel's groups are of this host and boot; the run is not in the name."""
    parts = name.removeprefix(_PREFIX).split("-")
    if len(parts) != 4 or not parts[0].isdigit():
        return None
    here = this_owner()
    return Owner(
        run="", host=here.host, boot=here.boot, namespace=f"pid:[{parts[2]}]", pid=int(parts[0]), started=parts[1]
    )


def _limits(places: set[str], memory_bytes: int, processes: int, cpus: float | None) -> Mapping[str, str]:
    quota = str(int((cpus or 0) * _CPU_PERIOD))
    if "unified" in places:
        limits = {"memory.max": str(memory_bytes), "memory.swap.max": "0", "pids.max": str(processes)}
        return limits | ({"cpu.max": f"{quota} {_CPU_PERIOD}"} if cpus else {})
    limits = {"memory.limit_in_bytes": str(memory_bytes), "pids.max": str(processes)}
    return limits | ({"cpu.cfs_period_us": str(_CPU_PERIOD), "cpu.cfs_quota_us": quota} if cpus else {})


def _write(file: Path, value: str) -> None:
    if file.name == "memory.swap.max" and not file.exists():
        return  # a kernel without swap accounting
    file.write_text(value)


@functools.cache
def _places() -> Mapping[str, Path] | None:
    """Where groups can be made: by controller, or `unified` for version 2."""
    own = dict(_own_groups())
    mounts = list(_mounts())
    for point, kind, _ in mounts:
        if kind == "cgroup2":
            for place in _upwards(point, own.get("", "/")):
                if _works(place, ["memory.max", "pids.max", "cpu.max"]):
                    return {"unified": place}
    probes = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}
    places: dict[str, Path] = {}
    for point, kind, options in mounts:
        for controller, file in probes.items():
            if kind == "cgroup" and controller in options:
                place = _upwards(point, own.get(controller, "/"))[0]
                if _works(place, [file]):
                    places[controller] = place
    return places if set(places) == set(probes) else None


def _own_groups() -> list[tuple[str, str]]:
    """Controller (empty for version 2) and path of the group that this process is in."""
    groups = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups += [(controller, path) for controller in controllers.split(",")]
    return groups


def _mounts() -> list[tuple[Path, str, Sequence[str]]]:
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [(Path(row[1]), row[2], row[3].split(",")) for row in rows if row[2] in ("cgroup", "cgroup2")]


def _upwards(point: Path, path: str) -> list[Path]:
    """The group of this path, if it is visible, and those above it."""
    inner = point / path.lstrip("/")
    if not inner.is_dir():
        return [point]
    return [inner, *[parent for parent in inner.parents if parent.is_relative_to(point)]]


def _works(place: Path, files: Sequence[str]) -> bool:
    """A group can be made there, has these controls, and a process can join it."""
    probe = place / f"{_PREFIX}probe-{secrets.token_hex(6)}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        if not all(os.access(probe / file, os.W_OK) for file in files):
            return False
        join = ["/bin/sh", "-c", 'echo $$ >"$1"', "sh", str(probe / "cgroup.procs")]
        return subprocess.run(join, stderr=subprocess.DEVNULL, check=False).returncode == 0
    finally:
        ControlGroup((probe,)).remove()
