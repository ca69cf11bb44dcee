"""What a tool may need beyond itself: something that is opened for one trajectory and closed at its end."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

__all__ = ["ResourceSpec"]


@runtime_checkable
class ResourceSpec(Protocol):
    """Says what is needed, as a frozen, hashable value: equal specs of one trajectory share one resource."""

    def check(self) -> None:
        """Raises `UserError` if this machine cannot provide it; asked once, before any rollout begins."""
        ...

    def open(self) -> AbstractAsyncContextManager[Any]:
        """The resource itself. Entering and leaving it are bounded in time, and happen in different tasks."""
        ...
