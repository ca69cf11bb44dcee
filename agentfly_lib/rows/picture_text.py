"""Pictures that a typed table holds as bytes, as text: rows are JSON values, which have no bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

__all__ = ["IMAGE_COLUMNS", "pictures_as_text"]

IMAGE_COLUMNS = ("image", "images")
"""Columns that hold pictures."""


def pictures_as_text(value: Any) -> Any:
    """Bytes, bare or as `datasets` keeps them (`{"bytes": ..., "path": ...}`), alone or in a list, as `data:` URLs."""
    if isinstance(value, bytes):
        return f"data:;base64,{base64.b64encode(value).decode()}"
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"} and isinstance(value.get("bytes"), bytes):
        return pictures_as_text(value["bytes"])
    if isinstance(value, list | tuple):
        return [pictures_as_text(each) for each in value]
    return value
