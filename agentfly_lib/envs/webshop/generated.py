"""A made-up catalogue in the original's file formats, so that the shop opens with no download.

Every product can be told from the others by its title, and a goal's attributes and options are on its pages: a buyer
who searches, reads and chooses can earn the whole reward, and one who buys at random earns next to nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

__all__ = ["generate_catalogue"]

_DEPARTMENTS: dict[str, tuple[str, dict[str, Sequence[str]]]] = {
    "Clothing": ("fashion", {"Shoes": ("Sneaker", "Sandal", "Boot", "Loafer"), "Tops": ("Hoodie", "Blouse", "Jersey")}),
    "Home": ("garden", {"Furniture": ("Stool", "Bookcase", "Ottoman"), "Textiles": ("Curtain", "Quilt", "Rug")}),
    "Electronics": ("electronics", {"Audio": ("Headphone", "Soundbar"), "Power": ("Charger", "Adapter", "Battery")}),
    "Beauty": ("beauty", {"Hair": ("Shampoo", "Conditioner", "Hairbrush"), "Skin": ("Serum", "Lotion", "Balm")}),
    "Grocery": ("grocery", {"Snacks": ("Granola", "Cracker", "Popcorn"), "Drinks": ("Espresso", "Cider", "Broth")}),
}
_ATTRIBUTES = {
    "fashion": ("machine washable", "slip resistant", "elastic waist", "quick drying", "hand made", "arch support"),
    "garden": ("easy assembly", "space saving", "stain resistant", "solid wood", "super soft", "eco friendly"),
    "electronics": ("fast charging", "noise cancelling", "long lasting", "easy setup", "high fidelity", "low power"),
    "beauty": ("cruelty free", "paraben free", "tea tree", "sensitive skin", "travel size", "fragrance free"),
    "grocery": ("gluten free", "low sugar", "plant based", "keto friendly", "nut free", "dairy free"),
}
_OPTIONS = {
    "fashion": {
        "color": ("black", "navy", "olive", "white", "maroon"),
        "size": ("small", "medium", "large", "x-large"),
    },
    "garden": {"color": ("beige", "green", "walnut", "yellow"), "width": ("24 inch", "36 inch", "48 inch")},
    "electronics": {"color": ("black", "silver", "white"), "cable": ("3 feet", "6 feet", "10 feet")},
    "beauty": {"scent": ("vanilla", "lavender", "unscented"), "volume": ("50 ml", "100 ml", "250 ml")},
    "grocery": {"flavor": ("cinnamon", "coconut", "maple", "honey"), "pack": ("single", "pack of 6", "pack of 12")},
}
_SYLLABLES = "ba be bi bo da de di do fa fi go ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe po".split()  # noqa: SIM905
_LETTERS = "0123456789BCDFGHJKLMNPQRSTVWXYZ"


def generate_catalogue(products: int, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The contents of a file of products and of one of attributes. The first n are the same for any number."""
    rows: list[dict[str, Any]] = []
    attributes: dict[str, Any] = {}
    for number in range(products):
        row, about = _product(number, random.Random(f"{seed}/product/{number}"))
        rows.append(row)
        attributes[row["asin"]] = about
    return rows, attributes


def _product(number: int, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    department, (category, shelves) = rng.choice(list(_DEPARTMENTS.items()))
    shelf, nouns = rng.choice(list(shelves.items()))
    noun = rng.choice(nouns)
    kind, brand, line = noun.lower(), _name(rng), _name(rng)
    own = rng.sample(_ATTRIBUTES[category], 3)
    low = rng.randrange(5, 180) + 0.99
    options = {
        name: [{"value": value, "image": None} for value in rng.sample(values, rng.randint(2, len(values)))]
        for name, values in _OPTIONS[category].items()
    }
    row = {
        "asin": _asin(number),
        "name": f"{brand} {line} {noun}, {own[0].title()}",
        "full_description": f"The {line} is a {kind} by {brand}. It is {own[1]}.",
        "small_description": [f"{attribute.capitalize()} {kind}" for attribute in own],
        "pricing": f"${low:.2f}" if rng.random() < 0.7 else f"${low:.2f}${low + rng.randrange(5, 40):.2f}",
        "images": [],
        "product_category": f"{department} › {shelf} › {noun}s",
        "customization_options": options,
        "category": category,
        "query": f"{kind}s",
    }
    wanted = own[:2]
    about = {
        "attributes": own,
        "instruction": f"Find me a {' and '.join(wanted)} {brand} {line} {kind}",
        "instruction_attributes": wanted,
    }
    return row, about


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(3)).capitalize()


def _asin(number: int) -> str:
    digits = ""
    for _ in range(8):
        number, place = divmod(number, len(_LETTERS))
        digits = _LETTERS[place] + digits
    return f"B0{digits}"
