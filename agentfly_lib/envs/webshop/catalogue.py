"""Products, read from the original WebShop's file formats.

A price that is given as a range is drawn once, from the seed and the product alone, so that it is the same however
many products are loaded.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentfly_lib.envs.webshop.generated import generate_catalogue
from agentfly_lib.envs.webshop.settings import CatalogueFiles, GeneratedCatalogue
from agentfly_lib.errors import DataError

__all__ = ["Instruction", "Product", "Review", "read_catalogue"]

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_NO_PRICE = 100.0
_MAX_ASIN = 10
_MOST_UNPACKED = 100
"""Times its size that a compressed file may have; text of this kind has ten."""
_ALWAYS_UNPACKED = 16 << 20
"""Bytes that one may have anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a customer wrote."""

    title: str
    score: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A wish that this product fulfils, without its price limit."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Values that the wish names; only of instructions that people wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price: float
    """Dollars."""
    price_tag: str
    """What is shown; may be a range."""
    rating: str
    reviews: tuple[Review, ...]
    options: Mapping[str, tuple[str, ...]]
    """Name, such as `color`, to values; lower case."""
    attributes: tuple[str, ...]
    query: str
    """The search that it was found by when the catalogue was made."""
    category: tuple[str, ...]
    """From the widest to the narrowest."""
    worded: Instruction | None
    """Made of its attributes."""
    human: tuple[Instruction, ...]

    @property
    def indexed_text(self) -> str:
        """What search sees."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, *self.bullets[:1], options)).lower()


def read_catalogue(source: GeneratedCatalogue | CatalogueFiles, seed: int) -> list[Product]:
    """All products, in the file's order. Raises `DataError` naming the file and the product."""
    if isinstance(source, GeneratedCatalogue):
        products, attributes = generate_catalogue(source.products, source.seed)
        found = _products(
            products, attributes=attributes, human={}, reviews={}, seed=seed, source="the generated catalogue"
        )
        return list(found)
    products = _read(source.products, list)
    attributes = _read(source.attributes, dict)
    human = _read(source.human_goals, dict) if source.human_goals else {}
    reviews = _reviews(source.reviews) if source.reviews else {}
    rows = products[: source.first]
    found = list(
        _products(rows, attributes=attributes, human=human, reviews=reviews, seed=seed, source=str(source.products))
    )
    if not found:
        raise DataError(f"{source.products} has no products")
    return found


def _products(
    rows: Sequence[Any],
    *,
    attributes: Mapping[str, Any],
    human: Mapping[str, Any],
    reviews: Mapping[str, Any],
    seed: int,
    source: str,
) -> Iterator[Product]:
    seen: set[str] = set()
    for number, row in enumerate(rows):
        try:
            asin = row["asin"]
            if asin == "nan" or len(asin) > _MAX_ASIN or asin in seen:  # as the original leaves them out
                continue
            seen.add(asin)
            yield _product(row, attributes.get(asin, {}), human.get(asin, ()), reviews.get(asin, {}), seed)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{source}: product {number} is not in WebShop's format: {type(error).__name__}: {error}"
            ) from error


def _product(
    row: Mapping[str, Any], attributes: Mapping[str, Any], human: Sequence[Any], reviews: Mapping[str, Any], seed: int
) -> Product:
    bullets = row["small_description"]
    prices = [float(price.replace(",", "")) for price in _NUMBER.findall(row.get("pricing") or "")][:2] or [_NO_PRICE]
    worded = attributes.get("instruction")
    return Product(
        asin=row["asin"],
        title=row["name"],
        description=row["full_description"] or "",
        bullets=tuple(bullets if isinstance(bullets, list) else [bullets]),
        price=prices[0] if len(prices) == 1 else random.Random(f"{seed}/price/{row['asin']}").uniform(*prices),
        price_tag=" to ".join(f"${price}" for price in prices),
        rating=str(reviews.get("average_rating", "N.A.")),
        reviews=tuple(_review(review) for review in reviews.get("reviews", ())),
        options=_options(row["customization_options"] or {}),
        attributes=tuple(attributes.get("attributes", ("DUMMY_ATTR",))),
        query=row["query"].lower().strip(),
        category=tuple(part.strip() for part in row["product_category"].split("›")),
        worded=Instruction(text=worded, attributes=tuple(attributes["instruction_attributes"])) if worded else None,
        human=tuple(
            Instruction(
                text=wish["instruction"].strip("."),
                attributes=tuple(wish["instruction_attributes"]),
                options=tuple(wish["instruction_options"]),
            )
            for wish in human
        ),
    )


def _options(groups: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {
        name.lower(): tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
        for name, values in groups.items()
        if values is not None
    }


def _reviews(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, row in enumerate(_read(path, list)):
        if not isinstance(row, dict) or not isinstance(row.get("asin"), str):
            raise DataError(f"{path}: review {number} is not in WebShop's format: it names no asin")
        found[row["asin"]] = row
    return found


def _review(row: Mapping[str, Any]) -> Review:
    return Review(
        title=str(row.get("title") or ""),
        score=str(row.get("score", row.get("stars", ""))),
        body=str(row.get("body") or row.get("review") or ""),
    )


def _read(path: Path, kind: type) -> Any:
    try:
        value = json.loads(_unpacked(path) if path.suffix == ".gz" else path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise DataError(f"{path} is not JSON{' under gzip' if path.suffix == '.gz' else ''}: {error}") from error
    if not isinstance(value, kind):
        raise DataError(f"{path} holds a {type(value).__name__}; WebShop's file is a {kind.__name__}")
    return value


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file. Raises `DataError` for one of a few bytes that would fill the memory."""
    most = max(_ALWAYS_UNPACKED, _MOST_UNPACKED * path.stat().st_size)
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DataError(
            f"{path} unpacks to more than {_MOST_UNPACKED} times its size; unpack it yourself if it is right"
        )
    return data
