"""Symbolic comparison of two answers in LaTeX, by `math_verify`. It may take for ever: run it in a worker process."""

from __future__ import annotations

import logging

__all__ = ["symbolic_equal"]


def symbolic_equal(given: str, reference: str) -> bool:
    """Whether both are the same mathematical object; False if one cannot be read."""
    import math_verify

    # Its own time limits are signals, which do not interrupt C code, so they are off (it warns about that); the worker
    # process is ended instead.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    wanted, found = (math_verify.parse(f"${text}$", parsing_timeout=None) for text in (reference, given))  # type: ignore[arg-type]
    return bool(math_verify.verify(wanted, found, timeout_seconds=None))
