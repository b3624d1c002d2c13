"""A folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.

A row of the corpus is one candidate, or, if it has ``sentences`` (their [start, end) in its text), a document of candidates:
number n of document d is then ``d#n``. The questions file may mix splits: a split's questions are those with a line in its
gold, even of relevance 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydist.corpus.cutting import Spans, fits, sentence_row
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.formats.tables import corpus_rows, read_judged, whole_row
from raydist.corpus.ids import KnownIds
from raydist.corpus.messages import some
from raydist.corpus.open_set import Block, Judged, OpenSet
from raydist.corpus.paths import check_there, with_or_without_gz
from raydist.corpus.rejected import DUPLICATE_ID, WRONG_BOUNDARY
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.errors import InputError
from raydist.records import Rejected


class Beir:
    """One folder."""

    def open(self, files: CorpusFiles) -> OpenSet:
        (folder,) = files.exactly("folder")
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; format beir needs one with corpus.jsonl, queries.jsonl and qrels/")
        return open_beir(folder, files.split, files.language)

    def files_of(self, folder: Path, split: str) -> list[Path]:
        files = [with_or_without_gz(folder / name) for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")]
        check_there(*files[:2])
        if not files[2].is_file():
            splits = sorted({file.name.partition(".")[0] for file in (folder / "qrels").glob("*.tsv*")})
            raise InputError(f"{folder} has no gold of the split {split!r}, only of {some(splits)}: set `split` to one of them")
        return files

    def open_rows(self, paths: Sequence[Path], columns: Mapping[str, str]) -> OpenSet:
        check_there(*paths)
        rejected: list[Rejected] = []
        return OpenSet(", ".join(map(str, paths)), _beir_blocks(paths, rejected), Judged, rejected)


def open_beir(folder: Path, split: str = "test", language: str | None = None) -> OpenSet:
    """The corpus, and the questions and gold of a split."""
    corpus, questions, gold = Beir().files_of(Path(folder), split)
    rejected: list[Rejected] = []
    gold_columns = {"question_id": "query-id", "sentence_id": "corpus-id", "relevance": "score"}
    ids = {"question_id": "_id"}
    judged = partial(read_judged, questions, gold, ids, gold_columns, rejected, split_by_gold=True, language=language)
    return OpenSet(str(corpus), _beir_blocks([corpus], rejected, language), judged, rejected)


def _beir_blocks(paths: Sequence[Path], rejected: list[Rejected], default: str | None = None) -> Iterator[Block]:
    documents = KnownIds()
    for path, block in corpus_rows(paths, {"sentence_id": "_id"}, rejected, default):
        spans_of = [_named_spans(row, kept["text"]) for kept, row in block]
        is_new = iter(documents.add([kept["sentence_id"] for (kept, _), spans in zip(block, spans_of) if spans]))
        lines, rows, passages = [], [], []
        for (kept, row), spans in zip(block, spans_of):
            id, text, line, language = kept["sentence_id"], kept["text"], kept["line"], kept["language"] or "en"
            if spans is None:
                lines.append(line)
                rows.append(whole_row(kept))
            elif not spans:
                detail = f"wanted sentences [[start, end], ...] within the text, saw {str(row)[:150]}"
                rejected.append(Rejected(str(path), line, id, "document", WRONG_BOUNDARY, detail))
            elif not next(is_new):
                rejected.append(Rejected(str(path), line, id, "document", DUPLICATE_ID, repr(text)[:200]))
            else:
                ids = {"passage_id": id, "document_id": id}
                passages.append({**ids, "title": kept["title"], "text": text, "language": language})
                for number, (start, end) in enumerate(spans):
                    lines.append(line)
                    rows.append(sentence_row(f"{id}#{number}", text[start:end], start, end, language, **ids))
        yield Block(
            str(path), lines, pa.Table.from_pylist(rows, SENTENCE_SCHEMA), pa.Table.from_pylist(passages, PASSAGE_SCHEMA)
        )


def _named_spans(row: Mapping[str, Any], text: str) -> Spans | None:
    """The sentence spans given in a document; empty if they do not fit its text, None if it gives none."""
    spans = row.get("sentences")
    if spans is None:
        return None
    are_pairs = isinstance(spans, list) and all(isinstance(s, list) and [type(x) for x in s] == [int, int] for s in spans)
    return spans if are_pairs and fits(spans, len(text)) else []
