"""Every key of a recipe says what it is: the form in the Prefect page and the reference of recipes show it."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import BaseModel

from agentfly_lib.configs import RunConfig


def sections(config: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """`config` and every section that a recipe of it may have."""
    if config not in seen:
        seen.add(config)
        for field in config.model_fields.values():
            for part in parts(field.annotation):
                sections(part, seen)
    return seen


def parts(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for each in get_args(annotation) for part in parts(each)]


SECTIONS = sorted(sections(RunConfig, set()) - {RunConfig}, key=lambda section: section.__name__)


def test_the_sections_of_a_recipe_are_found():
    assert len(SECTIONS) > 40


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_says_what_it_is(section):
    bare = [name for name, field in section.model_fields.items() if name != "type" and not field.description]
    assert not bare
