"""Whether a chat template comes to an end. A template is a program that comes with a model, and nothing interrupts one
that loops: so it is first tried on short conversations in a process of its own, which is killed at its limit. One that
is made to loop on longer conversations alone is not found.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentfly_lib.chat import probe_program
from agentfly_lib.errors import ModelError

__all__ = ["probe_templates"]

CPU_SECONDS = 10
"""Of the probe's own time; a template needs milliseconds."""
WALL_SECONDS = 120.0
MEMORY_BYTES = 2 * 2**30

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
_CALL = {"id": "call00000", "type": "function", "function": {"name": "look_up", "arguments": {"what": "it"}}}
_SYSTEM, _USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}
_ANSWER = {"role": "assistant", "content": "This.", "reasoning_content": "Hm."}
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": "call00000", "name": "look_up", "content": "found"}
_CONVERSATIONS: Sequence[Mapping[str, Any]] = [
    {"messages": messages, "tools": tools, "add_generation_prompt": prompt}
    for messages in (
        [_USER],
        [_SYSTEM, _USER],
        [_USER, _ANSWER, _USER, _ANSWER, _USER],
        [_SYSTEM, _USER, _CALLING, _RESULT],
    )
    for tools in (None, [_TOOL])
    for prompt in (True, False)
]


def probe_templates(sources: Sequence[str], variables: Mapping[str, Any], *, where: str) -> None:
    """Tries Jinja sources with these variables (special tokens, options).

    Raises `ModelError` naming `where` if one does not end within `CPU_SECONDS`, or needs more than `MEMORY_BYTES`. What
    a template writes or refuses is not looked at.
    """
    written = json.dumps(dict(variables), sort_keys=True, default=str)
    for source in sources:
        fault = _fault(source, written)
        if fault is not None:
            raise ModelError(
                f"the chat template of {where} {fault} for a short conversation; it is broken or hostile, so "
                "the model cannot be used with it: name another with agent.template"
            )


@functools.lru_cache(maxsize=256)
def _fault(source: str, variables: str) -> str | None:
    asked = {"source": source, "conversations": _CONVERSATIONS, "variables": json.loads(variables)}
    command = [sys.executable, "-I", str(Path(probe_program.__file__)), str(CPU_SECONDS), str(MEMORY_BYTES)]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked).encode(), capture_output=True, timeout=WALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not come to an end within {WALL_SECONDS:g} s"
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"did not come to an end within {CPU_SECONDS} s"
    if done.returncode == probe_program.OUT_OF_MEMORY:
        return f"needs more than {MEMORY_BYTES >> 20} MiB"
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return f"could not be tried (the probe ended with {done.returncode}: {said[-1] if said else 'no word'})"
    return None
