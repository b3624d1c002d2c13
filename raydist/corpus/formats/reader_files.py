"""Files of questions in any format as a corpus: their passages cut into sentences.

Gold is the sentence where an answer begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from raydist.corpus.cutting import cut_passages
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.formats.multireqa import Boundaries, read_boundaries
from raydist.corpus.open_set import Block, RetrievalSet, read_whole
from raydist.corpus.rejected import DUPLICATE_ID, OUTSIDE_SENTENCES
from raydist.corpus.schemas import PASSAGE_SCHEMA
from raydist.records import Example, Rejected

CUT_BY_RULE = "passages without boundaries: cut by rule"
OF_NO_PASSAGE = "lines of boundaries that are about none of these passages: left out"


class ReaderFiles:
    """Any number of files or globs, read whole."""

    def open(self, files: CorpusFiles) -> RetrievalSet:
        from raydist.corpus.examples import read_files  # circular: it uses the table of formats that includes this one

        examples, rejected = read_files([str(path) for path in files.paths], files.language)
        boundaries = read_boundaries(files.boundaries, examples) if files.boundaries else None
        found = sentences_of_examples(examples, boundaries)
        found.rejected[:0] = rejected
        return found


def sentences_of_examples(examples: Iterable[Example], boundaries: Boundaries | None = None) -> RetrievalSet:
    """The passages of examples as sentences, cut by rule or by boundaries.

    An answer across two sentences belongs to the one with its first character (methods 5.8).
    """
    kept = list(examples)
    passages = _passages(kept)
    rejected = list(boundaries.rejected) if boundaries else []
    sentences = cut_passages(passages, boundaries.spans if boundaries else None)
    asked, gold = _asked(kept, sentences, rejected)
    block = Block("", [0] * len(sentences), sentences, passages)
    notes = {CUT_BY_RULE: len(passages) - len(boundaries.spans), OF_NO_PASSAGE: boundaries.unmatched} if boundaries else {}
    notes = {note: number for note, number in notes.items() if number}
    return read_whole(kept[0].file if kept else "the input", block, asked, gold, rejected, notes)


def _passages(examples: Iterable[Example]) -> pa.Table:
    passages: dict[str, dict[str, Any]] = {}
    for example in examples:
        passage = {"text": example.context, "title": example.title, "language": example.language}
        ids = {"passage_id": example.passage_id, "document_id": example.title or example.passage_id}
        passages.setdefault(example.passage_id, {**ids, **passage})
    return pa.Table.from_pylist(list(passages.values()), PASSAGE_SCHEMA)


def _asked(
    examples: Iterable[Example], sentences: pa.Table, rejected: list[Rejected]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The questions, and for each answer the sentence with its first character."""
    of_passage = defaultdict(list)
    for sentence in sentences.to_pylist():
        of_passage[sentence["passage_id"]].append(sentence)
    asked, gold = [], []
    seen: set[tuple[str, str]] = set()
    spoken: dict[str, set[str]] = defaultdict(set)
    for example in examples:
        spoken[example.id].add(example.language)
    for example in examples:
        key = (example.id, example.language)
        if key in seen:  # from another file: its answers may differ from the first one's
            detail = repr(example.question)[:200]
            rejected.append(Rejected(example.file, example.line, example.id, "question", DUPLICATE_ID, detail))
            continue
        seen.add(key)
        id = f"{example.language}:{example.id}" if len(spoken[example.id]) > 1 else example.id  # translations share their ids
        where = {"file": example.file, "line": example.line, "question_id": id}
        asked.append({"text": example.question, "language": example.language, **where})
        for answer in example.answers:
            for sentence in of_passage[example.passage_id]:
                if sentence["start"] <= answer.start < sentence["end"]:
                    gold.append({"sentence_id": sentence["sentence_id"], "relevance": 1, **where})
                    break
            else:
                detail = f"starts at {answer.start}: {answer.text!r}"[:200]
                rejected.append(Rejected(example.file, example.line, example.id, "answer", OUTSIDE_SENTENCES, detail))
    return asked, gold
