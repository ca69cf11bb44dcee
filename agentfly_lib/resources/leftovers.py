"""What runs that were killed have left: containers and control groups, by the owner that is written on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentfly_lib.errors import SandboxUnavailableError
from agentfly_lib.resources.control_group import ControlGroup, left_groups
from agentfly_lib.resources.docker_engine import docker_engine
from agentfly_lib.resources.owner import Owner

__all__ = ["Leftover", "find", "reap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that bears our labels, left behind or in use."""

    kind: Literal["container", "control group"]
    name: str
    what: str
    """Image and status of a container, folder of a group."""
    owner: Owner
    group: ControlGroup | None = None

    @property
    def state(self) -> str:
        """Whether its owner still runs, as far as can be seen from here."""
        return {True: "left behind", False: "in use", None: f"of another machine ({self.owner.host})"}[self.owner.gone]


def find() -> list[Leftover]:
    """Everything on this machine and its Docker engine, if there is one, that bears our labels; blocking."""
    found = [
        Leftover(kind="control group", name=group.folders[0].name, what=str(group.folders[0]), owner=owner, group=group)
        for group, owner in left_groups()
    ]
    try:
        containers = docker_engine().left()
    except SandboxUnavailableError:
        containers = []
    found += [
        Leftover(
            kind="container", name=container.name, what=f"{container.image}, {container.status}", owner=container.owner
        )
        for container in containers
    ]
    return found


def reap(found: Sequence[Leftover], *, run: str | None = None, everything: bool = False) -> list[Leftover]:
    """Removes those whose owner is gone, and returns them; blocking.

    run: only those of this run. everything: also what is in use, or of another machine.
    """
    chosen = [
        leftover
        for leftover in found
        if (everything or leftover.owner.gone) and (run is None or leftover.owner.run == run)
    ]
    for leftover in chosen:
        if leftover.group is not None:
            leftover.group.remove()
        else:
            docker_engine().remove(leftover.name)
    return chosen
