"""Documents, questions about them, and facts that another document restates in other words.

Memory holds one block of documents: a fact is restated within its block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from raydist.sample.files import open_for_writing, write_line
from raydist.sample.language import Statement, Text
from raydist.sample.languages.en import ENGLISH
from raydist.sample.world import Fact, Passage, World

SENTENCES_PER_DOCUMENT = 8  # six facts, a note, and a guest: a fact of another document
BLOCK = 64
MAX_QUERIES = 200_000


def num_documents(num_sentences: int) -> int:
    """The number of documents: all equally long except the last, which is cut short."""
    return -(-num_sentences // SENTENCES_PER_DOCUMENT)


def write_corpus(folder: Path, world: World, first: int, num_sentences: int, progress: Callable[[int], None]) -> dict[str, int]:
    """Write corpus, queries, qrels and restatements from passage number ``first`` on; returns the number of each."""
    total = num_documents(num_sentences)
    max_queries = min(num_sentences // 5, MAX_QUERIES)
    num_queries = num_restated = 0
    with ExitStack() as stack:
        corpus, queries, restated = (
            stack.enter_context(open_for_writing(folder / f"{name}.jsonl")) for name in ("corpus", "queries", "restated")
        )
        qrels = {split: stack.enter_context(open_for_writing(folder / f"qrels/{split}.tsv")) for split in ("train", "dev")}
        for file in qrels.values():
            file.write("query-id\tcorpus-id\tscore\n")
        for start in range(0, total, BLOCK):
            block = [world.passage(first + number) for number in range(start, min(start + BLOCK, total))]
            rngs = [world.rng(passage.number, "queries") for passage in block]
            asked = [rng.sample(range(len(passage.facts)), 2) for rng, passage in zip(rngs, block)]
            half = len(block) // 2  # a document's guest comes from half a block before it; 0: there is no other document
            texts = []
            for here, passage in enumerate(block):
                owner = (here - half) % len(block)
                guest = _restate(world, passage, block[owner].facts[asked[owner][0]]) if half else _second_note(world, passage)
                texts.append(ENGLISH.write(passage, world.rng(passage.number, "en"), guest))
                spans = texts[-1].spans[: num_sentences - (start + here) * SENTENCES_PER_DOCUMENT]
                document = {"_id": _document_id(start + here), "title": ENGLISH.name(passage.title)}
                write_line(corpus, document | {"text": texts[-1].text[: spans[-1][1]], "sentences": spans})
            for here, passage in enumerate(block):
                split = "dev" if (start + here) % 6 == 5 else "train"
                for index in asked[here][: 2 if (start + here) % 5 < 3 else 1]:  # eight for five documents
                    gold = _sentence_id(start + here, texts[here], index, num_sentences)
                    if gold is None or num_queries == max_queries:
                        continue
                    num_queries += 1
                    query_id = f"{_document_id(start + here)}q{index}"
                    question = ENGLISH.ask(passage.facts[index], rngs[here], training=split == "train")
                    write_line(queries, {"_id": query_id, "text": question, "split": split})
                    qrels[split].write(f"{query_id}\t{gold}\t1\n")
                    host = (here + half) % len(block)
                    other = _sentence_id(start + host, texts[host], -1, num_sentences)
                    if index == asked[here][0] and half and other is not None:
                        num_restated += 1
                        write_line(restated, {"query-id": query_id, "corpus-id": other})
                        if split == "dev":
                            qrels[split].write(f"{query_id}\t{other}\t1\n")
            progress(start + len(block))
    return {"corpus documents": total, "corpus sentences": num_sentences, "queries": num_queries, "restated": num_restated}


def _document_id(number: int) -> str:
    return f"c{number:08d}"


def _sentence_id(number: int, text: Text, statement: int, num_sentences: int) -> str | None:
    """The id of a sentence; None if the end of the corpus cuts it off."""
    place = text.places[statement]
    return f"{_document_id(number)}#{place}" if number * SENTENCES_PER_DOCUMENT + place < num_sentences else None


def _restate(world: World, host: Passage, fact: Fact) -> Statement:
    """The fact in other words; half of the time the name, too, is hidden in a word that no question has."""
    rng = world.rng(host.number, "guest")
    name = fact.entity.rpartition(" ")[2]
    hidden = fact._replace(entity=f"{name}ian" if rng.random() < 0.5 else name)
    return ENGLISH.say(hidden, ENGLISH.restated[fact.relation], rng)


def _second_note(world: World, passage: Passage) -> Statement:
    rng = world.rng(passage.number, "guest")
    return ENGLISH.say(Fact("note", passage.title, rng.randrange(1990, 2000)), ENGLISH.notes, rng)
