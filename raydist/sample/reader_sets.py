"""Questions with answer spans in the SQuAD v1.1 layout, and the adversarial copy of a set."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from raydist.sample.files import open_for_writing, to_json
from raydist.sample.language import KNOWN_STATEMENTS, Language
from raydist.sample.world import Fact, Passage, World

Row = dict[str, Any]  # a question of a SQuAD file: id, question, answers
SHARE_AT_START = 0.25  # of the distractors; the others come last, as in AddSent


def write_reader_set(
    path: Path, world: World, language: Language, numbers: Iterable[int], training: bool, adversarial: bool = False
) -> int:
    """Write the passages with these numbers, one article per line; returns the number of questions."""
    num_questions = 0
    with open_for_writing(path) as file:
        file.write('{"version": "1.1", "data": [')
        for ordinal, number in enumerate(numbers):
            passage = world.passage(number)
            text, rows = ask_about(world, language, passage, training)
            paragraphs = [{"context": text, "qas": [row for _, row in rows]}]
            if adversarial:
                paragraphs += mislead(world, language, passage, text, rows)
            article = {"title": language.name(passage.title), "paragraphs": paragraphs}
            file.write((",\n" if ordinal else "\n") + to_json(article))
            num_questions += sum(len(paragraph["qas"]) for paragraph in paragraphs)
        file.write("\n]}\n")
    return num_questions


def ask_about(world: World, language: Language, passage: Passage, training: bool) -> tuple[str, list[tuple[Fact, Row]]]:
    """The passage in words, and a question for each of its facts except one, which is the same in every language."""
    rng = world.rng(passage.number, language.code)
    text = language.write(passage, rng, num_templates=KNOWN_STATEMENTS if training else None, with_references=True)
    skipped = world.rng(passage.number, "skipped").randrange(len(passage.facts))
    prefix, suffix = "t" if training else "d", "" if language.code == "en" else f"_{language.code}"
    rows = []
    for index, fact in enumerate(passage.facts):
        if index == skipped:
            continue
        statement = text.statements[index]
        start = text.spans[text.places[index]][0] + statement.start
        row = {
            "id": f"{prefix}{passage.number:06d}q{index}{suffix}",
            "question": language.ask(fact, rng, training),
            "answers": [{"text": statement.answer, "answer_start": start}],
        }
        rows.append((fact, row))
    return text.text, rows


def mislead(world: World, language: Language, passage: Passage, text: str, rows: list[tuple[Fact, Row]]) -> list[Row]:
    """Each question again, with a sentence added to its passage that only looks like the answer."""
    rng = world.rng(passage.number, "distractors")
    paragraphs = []
    for fact, row in rows:
        sentence = write_distractor(world, language, fact, passage.number, rng)
        at_start = rng.random() < SHARE_AT_START
        answers = [
            {"text": answer["text"], "answer_start": answer["answer_start"] + at_start * (len(sentence) + 1)}
            for answer in row["answers"]
        ]
        copy = {"id": f"{row['id']}-adv", "question": row["question"], "answers": answers}
        paragraphs.append({"context": f"{sentence} {text}" if at_start else f"{text} {sentence}", "qas": [copy]})
    return paragraphs


def write_distractor(world: World, language: Language, fact: Fact, number: int, rng: Random) -> str:
    """A sentence in the question's words about another entity, always with a wrong value."""
    right = language.answer(fact).lower()
    while True:
        look_alike = world.look_alike(fact, number, rng)
        sentence = language.say(look_alike, language.distractors[fact.relation], rng).text
        if right not in sentence.lower() and language.answer(look_alike).lower() not in right:
            return sentence
