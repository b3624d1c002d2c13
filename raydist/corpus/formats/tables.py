"""Three tables: a corpus with one candidate per row, questions {question_id, text}, and gold answers
{question_id, sentence_id, relevance?}; relevance 0 is no gold. Columns may be mapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydist.corpus.columns import in_blocks, read_table, wanted_rows
from raydist.corpus.cutting import sentence_row
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.open_set import Block, Judged, OpenSet
from raydist.corpus.paths import check_there
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.errors import InputError
from raydist.records import Rejected

OF_ANOTHER_SPLIT = "questions without gold answers in this split: left out"

_ROW = ("sentence_id", "text", "title", "document_id", "language")  # of a corpus
_QUESTION = ("question_id", "text", "language")
_JUDGEMENT = ("question_id", "sentence_id", "relevance")


class Tables:
    """Files for corpus, questions and gold, in this order."""

    def open(self, files: CorpusFiles) -> OpenSet:
        corpus, questions, gold = files.exactly("corpus", "questions", "gold")
        return open_tables(corpus, questions, gold, files.columns, files.language)

    def check(self, files: CorpusFiles) -> None:
        """Require three tables with the wanted columns."""
        wanted = {"corpus": _ROW, "questions": _QUESTION, "gold": _JUDGEMENT}
        for path, (table, names) in zip(files.exactly(*wanted), wanted.items()):
            next(read_table(path, names, files.columns.get(table), block_rows=1), None)

    def open_rows(self, paths: Sequence[Path], columns: Mapping[str, str]) -> OpenSet:
        check_there(*paths)
        rejected: list[Rejected] = []
        return OpenSet(", ".join(map(str, paths)), _row_blocks(paths, columns, rejected), Judged, rejected)


def open_tables(
    corpus: Path,
    questions: Path,
    gold: Path,
    columns: Mapping[str, Mapping[str, str]] | None = None,
    language: str | None = None,
) -> OpenSet:
    """``columns``: for each of "corpus", "questions" and "gold", our column names -> the file's."""
    check_there(corpus, questions, gold)
    rejected: list[Rejected] = []
    names = columns or {}
    judged = partial(read_judged, questions, gold, names.get("questions"), names.get("gold"), rejected, language=language)
    return OpenSet(str(corpus), _row_blocks([corpus], names.get("corpus"), rejected, language), judged, rejected)


def _row_blocks(
    paths: Sequence[Path], columns: Mapping[str, str] | None, rejected: list[Rejected], language: str | None = None
) -> Iterator[Block]:
    for path, block in corpus_rows(paths, columns, rejected, language):
        rows = [whole_row(kept) for kept, _ in block]
        sentences = pa.Table.from_pylist(rows, SENTENCE_SCHEMA)
        yield Block(str(path), [kept["line"] for kept, _ in block], sentences, PASSAGE_SCHEMA.empty_table())


def corpus_rows(
    paths: Sequence[Path], columns: Mapping[str, str] | None, rejected: list[Rejected], language: str | None = None
) -> Iterator[tuple[Path, list[tuple[dict[str, Any], dict[str, Any]]]]]:
    """Blocks of the rows of a corpus: under our names, and raw."""
    for path in map(Path, paths):
        for block in in_blocks(wanted_rows(path, _ROW, columns, "sentence", rejected, language)):
            yield path, block


def whole_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as one candidate, with its title, as usual for this layout."""
    text = f"{row['title']} {row['text']}".strip()
    return sentence_row(row["sentence_id"], text, language=row["language"], document_id=row["document_id"])


def read_judged(
    questions: Path,
    gold: Path,
    question_columns: Mapping[str, str] | None,
    gold_columns: Mapping[str, str] | None,
    rejected: list[Rejected],
    *,
    split_by_gold: bool = False,
    language: str | None = None,
) -> Judged:
    """Questions and gold from a table of each; with ``split_by_gold`` only questions with a line in gold."""
    asked = _with_file(questions, _QUESTION, question_columns, "question", rejected, language)
    lines = _with_file(gold, _JUDGEMENT, gold_columns, "gold", rejected)
    return judged_by(questions, gold, asked, lines, rejected, split_by_gold=split_by_gold)


def judged_by(
    questions: Path,
    gold: Path,
    asked: list[dict[str, Any]],
    lines: list[dict[str, Any]],
    rejected: list[Rejected],
    *,
    split_by_gold: bool,
) -> Judged:
    """The questions, or only those with a line in gold, and the lines that are gold."""
    about = {row["question_id"] for row in lines} | {row.id for row in rejected if row.what == "gold"}
    here = [row for row in asked if row["question_id"] in about]
    if asked and not here:
        raise InputError(f"{gold} is about none of the questions of {questions}; are the ids in the same columns of both?")
    judged = [row for row in lines if row["relevance"] > 0]
    if not split_by_gold:
        return Judged(asked, judged)
    return Judged(here, judged, {OF_ANOTHER_SPLIT: len(asked) - len(here)} if len(here) < len(asked) else {})


def _with_file(
    path: Path,
    wanted: Sequence[str],
    columns: Mapping[str, str] | None,
    what: str,
    rejected: list[Rejected],
    language: str | None = None,
) -> list[dict[str, Any]]:
    blocks = read_table(path, wanted, columns, what=what, rejected=rejected, language=language)
    return [{**row, "file": str(path)} for block in blocks for row in block.to_pylist()]
