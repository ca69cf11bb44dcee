"""A made-up corpus with questions: towns, and the people who founded them.

Every answer stands in one document, which the question's words find; for one question in two the town's document names
the person whose document answers it. No answer can be guessed, and none is known to a model beforehand.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentfly_lib.envs.search.corpus import Document
from agentfly_lib.envs.search.settings import GeneratedCorpus

__all__ = ["generate_corpus", "generate_questions"]

_STARTS = (
    "Bal Bren Cor Dal Dor Fal Fen Gar Gel Har Hol Jor Kar Kel Lan Lor Mar Mel Nor Ost Pel Quin Ral Ros Sal Sel Tal Tor"
)
_MIDDLES = "a e i o u an en or ar el il und ist avi edo imo ulo ero ana"
_TOWN_ENDS = "burg dale field ford ham mouth port stead ton wick"
_PERSON_ENDS = "bert dric fina gard las lia mund na ric sia tan thea vin wen"
_TRADES = ("glass", "salt", "wool", "clocks", "copper", "paper", "barley", "lace", "timber", "pottery", "honey", "rope")
_CALLINGS = ("navigator", "physician", "miller", "astronomer", "weaver", "mason", "printer", "botanist", "judge")


def generate_corpus(config: GeneratedCorpus) -> list[Document]:
    """Two documents for each town: its own and its founder's."""
    documents = []
    for number, fact in enumerate(_facts(config)):
        town, founder = fact["town"], fact["founder"]
        documents += [
            Document(
                id=f"town-{number}",
                title=town,
                text=f"{town} is a town on the river {fact['river']}. It was founded by {founder} in {fact['founded']} "
                f"and is known for its {fact['trade']}.",
            ),
            Document(
                id=f"person-{number}",
                title=founder,
                text=f"{founder}, born in {fact['born']} in {fact['birthplace']}, was a {fact['calling']}. "
                f"{founder} died in {fact['died']}.",
            ),
        ]
    return documents


def generate_questions(config: GeneratedCorpus) -> list[dict[str, Any]]:
    """Four for each town, with the ids of the documents that answer them; in an order of their own."""
    questions = []
    for number, fact in enumerate(_facts(config)):
        town, sources = fact["town"], [f"town-{number}", f"person-{number}"]
        for name, question, hops in (
            ("trade", f"What is the town of {town} known for?", 1),
            ("river", f"On which river is the town of {town}?", 1),
            ("born", f"In which year was the founder of the town of {town} born?", 2),
            ("calling", f"What was the calling of the founder of the town of {town}?", 2),
        ):
            row = {
                "id": f"{name}-{number}",
                "question": question,
                "answer": [str(fact[name])],
                "sources": sources[:hops],
            }
            questions.append(row)
    random.Random(f"{config.seed}/questions").shuffle(questions)
    return questions


def _facts(config: GeneratedCorpus) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"{config.seed}/facts")
    taken: set[str] = set()
    for _ in range(config.towns):
        founded = rng.randint(1200, 1850)
        born = founded - rng.randint(25, 60)
        yield {
            "town": _new_name(rng, _TOWN_ENDS, taken),
            "founder": f"{_new_name(rng, _PERSON_ENDS, taken)} {_new_name(rng, _PERSON_ENDS, taken)}",
            "birthplace": _new_name(rng, _TOWN_ENDS, taken),
            "river": _new_name(rng, "a e o", taken),
            "founded": founded,
            "born": born,
            "died": founded + rng.randint(1, 30),
            "trade": rng.choice(_TRADES),
            "calling": rng.choice(_CALLINGS),
        }


def _new_name(rng: random.Random, ends: str, taken: set[str]) -> str:
    length = 1
    while True:
        middle = "".join(rng.choice(_MIDDLES.split()) for _ in range(length))
        name = rng.choice(_STARTS.split()) + middle + rng.choice(ends.split())
        if name not in taken:
            taken.add(name)
            return name
        length += 1
