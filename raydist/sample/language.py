"""How a language puts facts into words: templates, phrases, numbers, dates and a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from raydist.sample.world import NOTE, Domain, Fact, Passage

Templates = Mapping[str, Sequence[str]]  # relation -> sentences with {A}, the entity, and {V}, the value
KNOWN_STATEMENTS = 4  # training uses only the first ones, and the first half of the questions
SHARE_REFERRED = 0.7  # of an entity's later mentions that omit its name
NAMED = re.compile(r"([Tt]he )?((river|firm|company|ship|vessel) )?\{A\}( (festival|bridge|engine|trial))?")


class Statement(NamedTuple):
    """A sentence and the position of the value in it: ``text[start : start + len(answer)] == answer``."""

    text: str
    start: int
    answer: str


class Text(NamedTuple):
    """A passage in words."""

    text: str
    spans: list[tuple[int, int]]  # of the sentences, in reading order
    statements: list[Statement]  # in the order of the facts; then the note, then a guest
    places: list[int]  # position of each statement in reading order


@dataclass(frozen=True)
class Language:
    """One language; the phrase lists of all languages are in the same order."""

    code: str
    domain: Domain
    statements: Templates
    questions: Templates
    notes: Sequence[str]  # sentences with a year that is never asked for
    phrases: Templates  # kind of value -> its phrases, by number
    units: Mapping[str, str]  # kind of value -> pattern around the number
    months: Sequence[str]
    date: str  # pattern with {day} and {month}
    thousands: str = ","
    script: dict[int, str] | None = None  # a str.translate table from Latin letters
    references: Mapping[str, str] = field(default_factory=dict)  # kind of entity -> words in place of its name
    restated: Templates = field(default_factory=dict)  # the fact in words no question uses
    distractors: Templates = field(default_factory=dict)  # the fact in the words of its questions

    def name(self, name: str) -> str:
        """A name of the world in this language's script."""
        return name.title() if self.script is None else name.translate(self.script)

    def value(self, kind: str, value: int | str) -> str:
        """A value of the world in words."""
        if isinstance(value, str):
            return self.name(value)
        if kind == "year":
            return str(value)
        if kind == "date":
            return self.date.format(day=value % 28 + 1, month=self.months[value // 28])
        if kind in self.units:
            return self.units[kind].replace("{}", f"{value:,}".replace(",", self.thousands))
        return self.phrases[kind][value]

    def answer(self, fact: Fact) -> str:
        """The answer to a question about this fact."""
        return self.value(self.domain.relations.get(fact.relation, NOTE)[1], fact.value)

    def say(self, fact: Fact, templates: Sequence[str], rng: Random, referred: bool = False) -> Statement:
        """The fact in one of these sentences; people by full name or by surname, a thing without its name when ``referred``."""
        template = templates[int(rng.random() * len(templates))]
        if referred:
            reference = self.references[self.domain.relations[fact.relation][0]]
            template = NAMED.sub(lambda match: reference if match.start() else reference.capitalize(), template)
        before, _, after = template.partition("{V}")
        name = self.name(fact.entity if rng.random() < 0.5 else fact.entity.rpartition(" ")[2])
        before, answer = before.replace("{A}", name), self.answer(fact)
        return Statement(before + answer + after.replace("{A}", name), len(before), answer)

    def ask(self, fact: Fact, rng: Random, training: bool) -> str:
        """A question about the fact."""
        questions = self.questions[fact.relation]
        known = (len(questions) + 1) // 2 if training else len(questions)
        return questions[int(rng.random() * known)].replace("{A}", self.name(fact.entity))

    def write(
        self,
        passage: Passage,
        rng: Random,
        guest: Statement | None = None,
        num_templates: int | None = None,
        with_references: bool = False,
    ) -> Text:
        """The passage in words, its sentences in random order, a sentence about something else among them.

        ``num_templates`` limits a relation to its first ones; references omit a name that the text has mentioned before.
        """
        facts = [*passage.facts, passage.note]
        order = list(range(len(facts) + (guest is not None)))
        rng.shuffle(order)
        statements: list[Statement] = [Statement("", 0, "")] * len(order)
        places = [0] * len(order)
        introduced: set[int | str] = set()
        spans, start = [], 0
        for place, index in enumerate(order):
            if index == len(facts):
                assert guest is not None
                statement = guest
            else:
                fact = facts[index]
                kind = self.domain.relations.get(fact.relation, NOTE)[0]
                templates = self.notes if fact is passage.note else self.statements[fact.relation][:num_templates]
                referred = with_references and kind in self.references and fact.entity in introduced
                statement = self.say(fact, templates, rng, referred and rng.random() < SHARE_REFERRED)
                introduced |= {fact.entity, fact.value}
            statements[index], places[index] = statement, place
            spans.append((start, start + len(statement.text)))
            start = spans[-1][1] + 1
        return Text(" ".join([statements[index].text for index in order]), spans, statements, places)
