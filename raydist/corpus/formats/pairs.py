"""A file {questions, answers, question_ids} of equally long lists.

Equal answers are one sentence, with an id made from its text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from raydist.corpus.checks import is_blank, is_text
from raydist.corpus.cutting import sentence_row
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.ids import passage_id
from raydist.corpus.open_set import Block, RetrievalSet, read_whole
from raydist.corpus.rejected import DUPLICATE_ID, WRONG_TYPE
from raydist.corpus.rows import load_lists
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.errors import InputError
from raydist.records import Rejected


class Pairs:
    """One file, read whole."""

    def open(self, files: CorpusFiles) -> RetrievalSet:
        (path,) = files.exactly("file")
        return read_answer_pairs(path, files.language or "en")


def read_answer_pairs(path: Path, language: str = "en") -> RetrievalSet:
    """Answers as sentences, and their questions."""
    path = Path(path)
    questions, answers, ids = load_lists(path, ("questions", "answers", "question_ids"))
    if not len(questions) == len(answers) == len(ids):
        raise InputError(
            f"{path}: {len(questions)} questions, {len(answers)} answers, {len(ids)} question_ids; wanted as many of each"
        )
    sentences: dict[str, tuple[int, dict[str, Any]]] = {}
    asked: dict[str, dict[str, Any]] = {}
    judged, rejected = [], []
    for line, (question, answer, number) in enumerate(zip(questions, answers, ids), 1):
        id = str(number)
        if not is_text(answer) or is_blank(answer) or not is_text(question) or not is_text(id):
            rejected.append(Rejected(str(path), line, id, "question", WRONG_TYPE, f"{question!r}, {answer!r}"[:200]))
            continue
        where = {"file": str(path), "line": line, "question_id": id}
        if id in asked and asked[id]["text"] != question:
            rejected.append(
                Rejected(str(path), line, id, "question", DUPLICATE_ID, f"asks {question!r}, before {asked[id]['text']!r}")
            )
            continue
        asked.setdefault(id, {"text": question, "language": language, **where})
        sentence_id = passage_id(answer)
        sentences.setdefault(sentence_id, (line, sentence_row(sentence_id, answer, language=language)))
        judged.append({"sentence_id": sentence_id, "relevance": 1, **where})
    lines, rows = [line for line, _ in sentences.values()], [row for _, row in sentences.values()]
    block = Block(str(path), lines, pa.Table.from_pylist(rows, SENTENCE_SCHEMA), PASSAGE_SCHEMA.empty_table())
    return read_whole(str(path), block, asked.values(), judged, rejected)
