"""Documents, questions about them, and the sentences of other documents that state the same facts in other wordings.

Wordings come from one pool for each relation: those of gold sentences, of other answers and of look-alikes, in all splits.
Memory holds one block of documents: a fact is restated within its block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

from raydist.sample.files import open_for_writing, write_line
from raydist.sample.languages.en import ENGLISH
from raydist.sample.world import Passage, World

FACTS = 6  # of a document's own
GUESTS = 12  # sentences about facts of other documents
LOOK_ALIKES = 1  # sentences about somebody with a similar name
SENTENCES_PER_DOCUMENT = FACTS + GUESTS + LOOK_ALIKES + 1  # and a note
QUESTIONS_PER_DOCUMENT = 4
BLOCK = 64
MAX_QUERIES = 200_000


class Told(NamedTuple):
    """A sentence, and which fact it states: of which document of the block, and which of that one's; None where nobody asks."""

    text: str
    fact: tuple[int, int] | None


class Document(NamedTuple):
    """What a passage gives to tell, in its own document and in others."""

    passage: Passage
    asked: list[int]  # facts
    own: list[Told]
    guests: list[Told]  # each for another document


CORPUS_FILES = ("corpus.jsonl", "queries.jsonl", "restated.jsonl", "qrels/train.tsv", "qrels/dev.tsv")


def num_documents(num_sentences: int) -> int:
    """All documents are equally long but the last, which is cut short."""
    return -(-num_sentences // SENTENCES_PER_DOCUMENT)


def write_corpus(folder: Path, world: World, first: int, num_sentences: int, progress: Callable[[int], None]) -> dict[str, int]:
    """Write corpus, queries, qrels and restatements, from passage number ``first`` on; how many of each."""
    total = num_documents(num_sentences)
    with ExitStack() as stack:
        corpus, *others = (stack.enter_context(open_for_writing(folder / name)) for name in CORPUS_FILES)
        questions = Questions(*others)
        for start in range(0, total, BLOCK):
            numbers = range(start, min(start + BLOCK, total))
            block = [tell(world, first + number, number - start) for number in numbers]
            answers: dict[tuple[int, int], list[str]] = {}  # ids of the sentences that state a fact, its own document's first
            for number, told in zip(numbers, _hosted(world, block)):
                told = told[: num_sentences - number * SENTENCES_PER_DOCUMENT]
                for place, sentence in enumerate(told):
                    if sentence.fact:
                        ids = answers.setdefault(sentence.fact, [])
                        ids.insert(0 if sentence.fact[0] == number - start else len(ids), f"{_document_id(number)}#{place}")
                _write_document(corpus, _document_id(number), ENGLISH.name(block[number - start].passage.title), told)
            for number, document in zip(numbers, block):
                questions.write(world, number, document, [answers.get((number - start, fact), []) for fact in document.asked])
            progress(numbers.stop)
    return {
        "corpus documents": total,
        "corpus sentences": num_sentences,
        "queries": questions.asked,
        "restated": questions.restated,
    }


def tell(world: World, number: int, here: int) -> Document:
    """A passage's facts, each in as many wordings as it is told: once in its own document, and some again in others."""
    passage, rng = world.passage(number), world.rng(number, "told")
    asked = rng.sample(range(FACTS), QUESTIONS_PER_DOCUMENT)
    wordings = [rng.sample(pool, len(pool)) for pool in (ENGLISH.wordings[fact.relation] for fact in passage.facts)]
    again = rng.choices(range(FACTS), k=GUESTS)  # some facts are told often, some once
    told = []
    for slot, index in enumerate([*range(FACTS), *again]):
        times = 0 if slot < FACTS else 1 + again[: slot - FACTS].count(index)
        wording = wordings[index][times % len(wordings[index])]
        told.append(Told(ENGLISH.say(passage.facts[index], [wording], rng).text, (here, index)))
    unasked = [Told(ENGLISH.say(passage.note, ENGLISH.notes, rng).text, None)]
    for index in asked[:LOOK_ALIKES]:
        similar = world.look_alike(passage.facts[index], number, rng)
        unasked.append(Told(ENGLISH.say(similar, ENGLISH.wordings[similar.relation], rng).text, None))
    return Document(passage, asked, told[:FACTS] + unasked, told[FACTS:])


def _hosted(world: World, block: Sequence[Document]) -> list[list[Told]]:
    """The sentences of each document of a block: its own, and guests, no two of one document where there are enough."""
    hosted = []
    for here, document in enumerate(block):
        guests = [block[here - (1 + slot % max(1, len(block) - 1))].guests[slot] for slot in range(GUESTS)]
        told = [*document.own, *guests]
        world.rng(document.passage.number, "order").shuffle(told)
        hosted.append(told)
    return hosted


def _write_document(file: IO[str], document_id: str, title: str, told: Sequence[Told]) -> None:
    spans, start = [], 0
    for sentence in told:
        spans.append((start, start + len(sentence.text)))
        start = spans[-1][1] + 1
    write_line(file, {"_id": document_id, "title": title, "text": " ".join(one.text for one in told), "sentences": spans})


def _document_id(number: int) -> str:
    return f"c{number:08d}"


class Questions:
    """The files about questions: queries, the sentences that were marked for them, and the others that answer, too."""

    def __init__(self, queries: IO[str], restated: IO[str], train: IO[str], dev: IO[str]) -> None:
        self.queries, self.restatements, self.qrels = queries, restated, {"train": train, "dev": dev}
        self.asked = self.restated = 0
        for file in self.qrels.values():
            file.write("query-id\tcorpus-id\tscore\n")

    def write(self, world: World, number: int, document: Document, answers: Sequence[Sequence[str]]) -> None:
        """What is asked about a document. ``answers`` are the sentences that answer each question, the marked one first: of
        dev questions all are judged."""
        split = "dev" if number % 2 else "train"
        rng = world.rng(document.passage.number, "queries")
        for index, ids in zip(document.asked, answers):
            question = ENGLISH.ask(document.passage.facts[index], rng, training=False)
            if not ids or not ids[0].startswith(_document_id(number)) or self.asked == MAX_QUERIES:
                continue  # what is asked for was cut off
            self.asked += 1
            self.restated += len(ids) - 1
            query_id = f"{_document_id(number)}q{index}"
            write_line(self.queries, {"_id": query_id, "text": question, "split": split})
            for gold in ids if split == "dev" else ids[:1]:
                self.qrels[split].write(f"{query_id}\t{gold}\t1\n")
            for other in ids[1:]:
                write_line(self.restatements, {"query-id": query_id, "corpus-id": other})
