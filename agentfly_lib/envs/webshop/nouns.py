"""Nouns of a product's title, for the part of the reward that asks whether two products are of one type.

The original lets spaCy tag the title. Without spaCy, every word counts that is neither a number nor a function word:
in titles, where most words are capitalised, a tagger calls nearly all of these proper nouns.
`docs/environments/webshop.md` says how far the two agree.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable

__all__ = ["NounFinder", "noun_finder", "words_of_title"]

NounFinder = Callable[[str], tuple[str, ...]]
"""From a title to its nouns in lower case, in their order, with repetitions."""

_WORD = re.compile(r"\w+(?:[.'’&+]\w+)*")
_POSSESSIVE = re.compile(r"['’]s?$")
_LETTER = re.compile(r"[^\W\d_]")
_FUNCTION_WORDS = (
    "a about above across after against all along am an and any are around as at be been before behind being below "
    "between beyond but by can could did do does down during each every for from had has have he her him his how i if "
    "in inside into is it it's its just may me might more most must my n n't near no nor not of off on only onto or "
    "our out outside over per plus s shall she should so than that the their them then there these they this those "
    "through to too toward towards under up upon us very via was we were what when where which while who whose why "
    "will with within without would yet you your"
)


_IGNORED = frozenset(_FUNCTION_WORDS.split())


def words_of_title(title: str) -> tuple[str, ...]:
    """Its words that are neither numbers nor function words."""
    words = (_POSSESSIVE.sub("", word).lower() for word in _WORD.findall(title))
    return tuple(word for word in words if _LETTER.search(word) and word not in _IGNORED)


@functools.lru_cache(maxsize=4)
def noun_finder(spacy_model: str | None) -> NounFinder:
    """The finder by a spaCy pipeline, or without one. What it has found it keeps."""
    find = words_of_title if spacy_model is None else _spacy_finder(spacy_model)
    return functools.lru_cache(maxsize=100_000)(find)


def _spacy_finder(model: str) -> NounFinder:
    import spacy  # pyright: ignore[reportMissingImports]

    pipeline = spacy.load(model, exclude=["parser", "ner", "lemmatizer"])
    tagging = threading.Lock()

    def find(title: str) -> tuple[str, ...]:
        with tagging:
            return tuple(token.text.lower() for token in pipeline(title) if token.pos_ in ("NOUN", "PROPN"))

    return find
