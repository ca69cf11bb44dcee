"""Writes conversations with a chat template, in a process that may be killed. Run by `chat.probe`, as a script.

Reads {"source", "conversations", "variables"} as JSON from standard input. Ends with 0 if the template came to an end,
whatever it wrote or raised, and with `OUT_OF_MEMORY` if it wanted too much. It imports nothing but Jinja.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import sys
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT_OF_MEMORY = 3
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""A tag of transformers' own, which changes nothing of what is written."""


def main() -> int:
    """See above."""
    seconds, memory_bytes = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    for conversation in asked["conversations"]:
        try:
            with contextlib.suppress(ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, TemplateError):
                _write(asked["source"], {**asked["variables"], **conversation})
        except MemoryError:
            return OUT_OF_MEMORY
    return 0


def _write(source: str, variables: dict[str, Any]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = str
    return environment.from_string(_GENERATION.sub("", source)).render(**variables)


def _raise(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    sys.exit(main())
