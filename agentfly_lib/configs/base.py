"""The base of every config: frozen, no unknown keys, descriptions beside the fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Config"]


class Config(BaseModel):
    """A part of a recipe. Unknown keys are errors; values never change after loading."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        validate_default=True,
        allow_inf_nan=False,
    )
