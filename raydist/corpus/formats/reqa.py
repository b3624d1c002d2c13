"""A ReQA file {questions, candidates, ground_truths}, the last being positions in candidates; ids are positions, too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from raydist.corpus.checks import is_text
from raydist.corpus.cutting import sentence_row
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.open_set import Block, RetrievalSet, read_whole
from raydist.corpus.rejected import WRONG_TYPE
from raydist.corpus.rows import load_lists
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.errors import InputError
from raydist.records import Rejected


class Reqa:
    """One file, read whole."""

    def open(self, files: CorpusFiles) -> RetrievalSet:
        (path,) = files.exactly("file")
        return read_reqa(path, files.language or "en")


def read_reqa(path: Path, language: str = "en") -> RetrievalSet:
    """Candidates, questions, and their ground truths."""
    path = Path(path)
    questions, candidates, truths = load_lists(path, ("questions", "candidates", "ground_truths"))
    if len(questions) != len(truths):
        raise InputError(f"{path} has {len(questions)} questions and {len(truths)} ground_truths; wanted one for each")
    rejected: list[Rejected] = []
    texts = (text if is_text(text) else "" for text in candidates)
    rows = [sentence_row(f"s{place:08d}", text, language=language) for place, text in enumerate(texts)]
    sentences = pa.Table.from_pylist(rows, SENTENCE_SCHEMA)
    asked, judged = [], []
    for line, (text, places) in enumerate(zip(questions, truths), 1):
        id = f"q{line - 1:08d}"
        where = {"file": str(path), "line": line, "question_id": id}
        asked.append({"text": text if is_text(text) else "", "language": language, **where})
        for place in places if isinstance(places, list) else [places]:
            if isinstance(place, int):
                judged.append({"sentence_id": f"s{place:08d}", "relevance": 1, **where})
            else:
                rejected.append(Rejected(str(path), line, id, "gold", WRONG_TYPE, f"wanted a place, saw {place!r}"[:200]))
    block = Block(str(path), range(1, len(rows) + 1), sentences, PASSAGE_SCHEMA.empty_table())
    return read_whole(str(path), block, asked, judged, rejected)
