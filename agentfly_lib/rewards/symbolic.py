"""Symbolic comparison of two answers in LaTeX, by `math_verify`.

An expression such as `10^{10^{10}}` takes for ever and all memory there is: run this in a worker process, under a time
limit. Memory is bounded here. Importing this takes seconds, which are none of a comparison's time.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterator

import math_verify

__all__ = ["symbolic_equal"]

MEMORY_BYTES = 2**30
"""What one comparison may take beyond what the process already has."""


def symbolic_equal(given: str, reference: str) -> bool:
    """Whether both are the same mathematical object; False if one cannot be read, or takes more than `MEMORY_BYTES`.

    Never raises: whatever the answer provokes is its own fault.
    """
    # Its own time limits are signals, which do not interrupt C code, so they are off (it warns about that); the worker
    # process is ended instead.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    try:
        with _memory_limit(MEMORY_BYTES):
            wanted, found = (
                math_verify.parse(f"${text}$", parsing_timeout=None)  # type: ignore[arg-type]
                for text in (reference, given)
            )
            return bool(math_verify.verify(wanted, found, timeout_seconds=None))
    except Exception:  # noqa: BLE001  MemoryError, RecursionError, and what SymPy does not expect of an expression
        return False


@contextlib.contextmanager
def _memory_limit(extra: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + extra if soft == resource.RLIM_INFINITY else min(soft, used + extra)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
