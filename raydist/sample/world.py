"""Facts of an invented world. A passage is a pure function of (seed, number), so nothing is kept in memory.

Every passage has its own range of names: no two passages share an entity until a name space is used up (after 2.8 million
passages names repeat).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from random import Random
from typing import NamedTuple

ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "gl", "kr", "st", "tr")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("n", "r", "l", "m", "s", "t", "k", "d")
SYLLABLES = tuple(map("".join, product(ONSETS, VOWELS, CODAS)))
FIRST_SYLLABLE = re.compile("^[^aeiou]+[aeiou][^aeiou]")
NUM_GIVEN_NAMES = 500
NAMES_PER_PASSAGE = 4  # of one kind
ENDINGS_OF = {
    "town": "ford haven stad borg dal gard ton mund vik holm rup bek lund mar kester burg",
    "river": "ver rin nel dos gan tis var lor bes num sil zan rek mon til das",
    "firm": "eks ol um ar is on et ir ak os em an us il or ens",
    "festival": "alas elin ored imas unel asik odar enil umas iret oran elis adun isel omar urin",
    "bridge": "span gat port ker stop rest vad mil den tor hus bur val nes sund brun",
    "ship": "aran olis unad eris ilan odar amis ural enik oris ulan ebor indar avel oket umir",
    "engine": "eks tron mat mot dor rak pol zent kam ron lit fos dak ter vent nom",
    "trial": "tes pron lab eksal vas rol kin dem sol bat fen mir gon tal pas lim",
}
ENDINGS = {kind: endings.split() for kind, endings in ENDINGS_OF.items()}
RANGES = {  # of the quantities: first, one past the last, step
    "year": (1500, 1990, 1),
    "date": (0, 12 * 28, 1),
    "inhabitants": (1200, 99000, 100),
    "workers": (40, 4000, 10),
    "kilometres": (30, 900, 1),
    "metres": (3, 95, 1),
    "knots": (4, 40, 1),
    "tonnes": (2, 480, 1),
    "degrees": (120, 990, 5),
    "days": (5, 95, 1),
    "reason": (0, 16, 1),  # from here on, numbers of a phrase in a language's lists
    "emblem": (0, 16, 1),
    "product": (0, 16, 1),
    "dish": (0, 16, 1),
    "material": (0, 12, 1),
    "cargo": (0, 16, 1),
    "fuel": (0, 12, 1),
    "substance": (0, 16, 1),
    "outcome": (0, 16, 1),
}
NOTE = ("any", "year")  # a note's (kind of entity, kind of value), like a relation's


class Fact(NamedTuple):
    """One relation of one entity. Names are lower-case Latin letters; each language writes them in its own script."""

    relation: str
    entity: str
    value: int | str


@dataclass(frozen=True, slots=True)
class Domain:
    """The possible facts: relation -> (kind of its entity, kind of its value), and the pairs of entities in a passage."""

    relations: dict[str, tuple[str, str]]
    pairs: Sequence[tuple[str, str, str]]  # kind, the relation that leads to the other entity, kind of the other


ENCYCLOPEDIA = Domain(
    relations={
        "birth_year": ("person", "year"),
        "birthplace": ("person", "town"),
        "mentor": ("person", "person"),
        "left_because": ("person", "reason"),
        "population": ("town", "inhabitants"),
        "charter_year": ("town", "year"),
        "emblem": ("town", "emblem"),
        "trade": ("town", "product"),
        "length": ("river", "kilometres"),
        "depth": ("river", "metres"),
        "flood_year": ("river", "year"),
        "mouth": ("river", "town"),
        "founder": ("firm", "person"),
        "firm_year": ("firm", "year"),
        "goods": ("firm", "product"),
        "staff": ("firm", "workers"),
        "feast_day": ("festival", "date"),
        "honours": ("festival", "person"),
        "dish": ("festival", "dish"),
        "venue": ("festival", "town"),
        "material": ("bridge", "material"),
        "designer": ("bridge", "person"),
        "opening_year": ("bridge", "year"),
        "closed_because": ("bridge", "reason"),
    },
    pairs=(
        ("person", "birthplace", "town"),
        ("firm", "founder", "person"),
        ("festival", "venue", "town"),
        ("festival", "honours", "person"),
        ("bridge", "designer", "person"),
        ("river", "mouth", "town"),
    ),
)
WORKSHOP = Domain(  # the second domain: ships, engines and laboratory trials
    relations={
        "speed": ("ship", "knots"),
        "captain": ("ship", "person"),
        "cargo": ("ship", "cargo"),
        "launched": ("ship", "date"),
        "drive": ("ship", "engine"),
        "fuel": ("engine", "fuel"),
        "weight": ("engine", "tonnes"),
        "inventor": ("engine", "person"),
        "heat": ("engine", "degrees"),
        "substance": ("trial", "substance"),
        "duration": ("trial", "days"),
        "leader": ("trial", "person"),
        "outcome": ("trial", "outcome"),
        "apparatus": ("trial", "engine"),
    },
    pairs=(("ship", "drive", "engine"), ("trial", "apparatus", "engine")),
)


@dataclass(slots=True)
class Passage:
    """Six facts about two related entities, and a year nobody asks for."""

    number: int
    title: str
    facts: list[Fact]
    note: Fact


class World:
    """All passages of one domain under one seed."""

    def __init__(self, domain: Domain, seed: int) -> None:
        self.domain, self.seed = domain, seed
        self.relations_of: dict[str, list[str]] = {}
        for relation, (kind, _) in domain.relations.items():
            self.relations_of.setdefault(kind, []).append(relation)
        self.scatter = {}  # an affine map over each name space: adjacent numbers have distant names
        for kind in ("person", *ENDINGS):
            size = len(SYLLABLES) ** 2 * (NUM_GIVEN_NAMES if kind == "person" else len(ENDINGS[kind]))
            rng = Random(f"{seed}:names:{kind}")
            factor = rng.randrange(size // 3, size // 2)
            while gcd(factor, size) > 1:
                factor += 1
            self.scatter[kind] = (factor, rng.randrange(size), size)
        given_names = [onset + vowel + syllable for onset in ONSETS[:15] for vowel in VOWELS for syllable in SYLLABLES[:600]]
        self.given_names = Random(f"{seed}:given names").sample(given_names, NUM_GIVEN_NAMES)

    def rng(self, number: int, purpose: str) -> Random:
        """Random numbers for one passage and purpose, independent of earlier draws."""
        return Random(f"{self.seed}:{number}:{purpose}")

    def name(self, kind: str, number: int) -> str:
        """The name with this number; unique for numbers below the size of the space."""
        factor, shift, size = self.scatter[kind]
        rest, last = divmod((number * factor + shift) % size, NUM_GIVEN_NAMES if kind == "person" else 16)
        first, second = divmod(rest, len(SYLLABLES))
        word = SYLLABLES[first] + SYLLABLES[second]
        return f"{self.given_names[last]} {word}" if kind == "person" else word + ENDINGS[kind][last]

    def passage(self, number: int) -> Passage:
        """The facts of one passage; values of one kind differ from each other within it."""
        rng = self.rng(number, "facts")
        kind, link, other_kind = self.domain.pairs[int(rng.random() * len(self.domain.pairs))]
        taken: set[tuple[str, int]] = set()
        used: dict[str, int] = {}

        def new_name(of: str) -> str:
            used[of] = used.get(of, -1) + 1
            return self.name(of, number * NAMES_PER_PASSAGE + used[of])

        def new_value(of: str) -> int | str:
            if of not in RANGES:
                return new_name(of)
            while (of, value := rng.randrange(*RANGES[of])) in taken:
                pass
            taken.add((of, value))
            return value

        entity, other = new_name(kind), new_name(other_kind)
        own, others = list(self.relations_of[kind]), list(self.relations_of[other_kind])
        if len(own) > 4:  # never the link, the last of five
            own.pop(int(rng.random() * 4))
        others = rng.sample(others, 2)
        values = self.domain.relations
        facts = [Fact(relation, entity, other if relation == link else new_value(values[relation][1])) for relation in own]
        facts += [Fact(relation, other, new_value(values[relation][1])) for relation in others]
        note = Fact("note", entity if rng.random() < 0.5 else other, new_value("year"))
        return Passage(number, entity, facts, note)

    def look_alike(self, fact: Fact, number: int, rng: Random) -> Fact:
        """The same relation of an entity with a similar name and another value, which does not answer the question."""
        value_kind = self.domain.relations[fact.relation][1]
        given, space, word = fact.entity.rpartition(" ")
        similar = word
        while similar == word:
            similar = FIRST_SYLLABLE.sub(SYLLABLES[int(rng.random() * len(SYLLABLES))], word, count=1)
        if value_kind in RANGES:
            value: int | str = rng.randrange(*RANGES[value_kind])
        else:
            value = self.name(value_kind, (number + 1) * NAMES_PER_PASSAGE - 1)  # a name unused by the passage
        return Fact(fact.relation, given + space + similar, value)
