"""Settings of the shop: which catalogue, which goals, and what the agent is shown."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from agentfly_lib.configs.base import Config
from agentfly_lib.envs.environment import EnvironmentSettings
from agentfly_lib.envs.search.bm25 import PACKAGES
from agentfly_lib.errors import ConfigError

__all__ = ["CatalogueConfig", "CatalogueFiles", "GeneratedCatalogue", "WebShopSettings", "check"]


class GeneratedCatalogue(Config):
    """Made-up products, from no file: the same ones for the same numbers."""

    type: Literal["generated"] = "generated"
    products: PositiveInt = 200
    seed: int = 0


class CatalogueFiles(Config):
    """Files of the original WebShop, JSON or JSON compressed by gzip."""

    type: Literal["files"] = "files"
    products: Path
    """Such as `items_shuffle_1000.json`."""
    attributes: Path
    """Such as `items_ins_v2_1000.json`."""
    human_goals: Path | None = None
    """Such as `items_human_ins.json`."""
    reviews: Path | None = None
    """Such as `reviews.json`; without it no product has a review or a rating."""
    first: PositiveInt | None = None
    """Use so many products from the file's beginning; all if unset."""


CatalogueConfig = Annotated[GeneratedCatalogue | CatalogueFiles, Field(discriminator="type")]


class WebShopSettings(EnvironmentSettings):
    """A shop and how it is shown."""

    catalogue: CatalogueConfig = GeneratedCatalogue()
    goals: Literal["attributes", "human"] = "attributes"
    """`attributes`: one goal for each combination of a product's options, worded from its attributes. `human`: the
    instructions that people wrote."""
    seed: int = 233
    """Of prices within a product's range, of price limits, and of the goals' order."""
    eval_goals: Literal["dev", "test"] = "dev"
    """Which goals are the held-out ones."""
    observation: Literal["text", "rich"] = "text"
    """`text`: what a page shows, joined by [SEP]. `rich`: line by line, with what can be clicked marked as [button]."""
    clickables: Literal["on_demand", "observation"] = "on_demand"
    """What can be clicked: told by a tool of its own, or after every observation."""
    spacy_model: str | None = None
    """A spaCy pipeline that is installed, such as `en_core_web_sm`, to find the nouns of titles as the original does.
    Unset: every word of a title that is neither a number nor a function word."""

    @model_validator(mode="after")
    def _human_goals_exist(self) -> WebShopSettings:
        if self.goals == "human" and (
            isinstance(self.catalogue, GeneratedCatalogue) or self.catalogue.human_goals is None
        ):
            raise ValueError('goals="human" needs catalogue.human_goals, the file of instructions that people wrote')
        return self


def check(settings: WebShopSettings) -> None:
    """Raises `ConfigError` naming packages that are not installed, or files that are not there."""
    needed = PACKAGES | {"rapidfuzz": "rapidfuzz"}
    if settings.spacy_model is not None:
        needed |= {"spacy": "spacy", settings.spacy_model: settings.spacy_model}
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(f"webshop needs {', '.join(missing)}: pip install 'agentfly-lib[envs]' or those packages")
    catalogue = settings.catalogue
    if isinstance(catalogue, CatalogueFiles):
        files = (catalogue.products, catalogue.attributes, catalogue.human_goals, catalogue.reviews)
        absent = [str(path) for path in files if path is not None and not path.is_file()]
        if absent:
            raise ConfigError(
                f"webshop: there is no {', no '.join(absent)} (looked from {Path.cwd()}); docs/environments/webshop.md "
                "says where the files are from"
            )
