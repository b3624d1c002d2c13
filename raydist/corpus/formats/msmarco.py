"""MS MARCO as it is published, in files without headers, and TREC's judgements and topics beside any such corpus.

    corpus     collection.tsv {pid, passage}; msmarco-docs.tsv {docid, url, title, body}
    questions  queries.SPLIT.tsv {qid, text}; TREC topics, with <top> or in XML
    gold       qrels.SPLIT.tsv {qid, 0, pid, relevance}, at tabs or blanks; relevance 0 is no gold

Three files in this order, or the folder with collection.tsv. The questions may mix splits: a split's are those with a line in
its gold.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydist.corpus.checks import cell_problem, writable
from raydist.corpus.columns import in_blocks
from raydist.corpus.cutting import sentence_row
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.formats.tables import judged_by
from raydist.corpus.messages import some
from raydist.corpus.open_set import Block, Judged, OpenSet
from raydist.corpus.paths import check_there, with_or_without_gz
from raydist.corpus.rejected import WRONG_TYPE, WRONG_WIDTH
from raydist.corpus.rows import Row, read_bytes, text_lines
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.errors import InputError
from raydist.records import Rejected

CORPORA = ("collection.tsv", "msmarco-docs.tsv", "docs.tsv")
_QRELS = re.compile(r"qrels\.(.+)\.tsv(\.gz)?")
_TOPIC = re.compile(r"<top>(.*?)</top>|<topic\b([^>]*)>(.*?)</topic>", re.DOTALL)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)")
_ATTRIBUTE = re.compile(r"(?:number|id)\s*=\s*[\"']([^\"']+)[\"']")
_TITLE = re.compile(r"<(title|query)>\s*(?:Topic:)?\s*(.*?)\s*(?=<|\Z)", re.DOTALL)


class MsMarco:
    """Three files, or the folder of the archive."""

    def files_of(self, folder: Path, split: str) -> list[Path]:
        corpus = next((file for name in CORPORA if (file := with_or_without_gz(folder / name)).is_file()), None)
        if corpus is None:
            raise InputError(f"{folder} holds none of {', '.join(CORPORA)}; give the three files: corpus, questions, gold")
        files = [corpus, *(with_or_without_gz(folder / f"{kind}.{split}.tsv") for kind in ("queries", "qrels"))]
        if missing := [file.name for file in files if not file.is_file()]:
            splits = [match[1] for name in sorted(folder.iterdir()) if (match := _QRELS.fullmatch(name.name))]
            raise InputError(f"{folder} has no {some(missing)}; its gold is of the splits {some(splits)}: set `split`")
        return files

    def open(self, files: CorpusFiles) -> OpenSet:
        paths = list(files.paths)
        if len(paths) == 1 and paths[0].is_dir():
            paths = self.files_of(paths[0], files.split)
        if len(paths) != 3:
            raise InputError(f"wanted a folder, or 3 in files (corpus, questions, gold), got {len(paths)}")
        check_there(*paths)
        corpus, questions, gold = paths
        rejected: list[Rejected] = []
        language = files.language or "en"
        judged = partial(_judged, questions, gold, language, rejected)
        return OpenSet(str(corpus), _blocks([corpus], language, rejected), judged, rejected)

    def open_rows(self, paths: Sequence[Path], columns: dict[str, str]) -> OpenSet:
        check_there(*paths)
        rejected: list[Rejected] = []
        return OpenSet(", ".join(map(str, paths)), _blocks(paths, "en", rejected), Judged, rejected)


def has_judgements(path: Path) -> bool:
    """Whether a file begins with a TREC judgement: four cells, the last a number, and no header."""
    line = read_bytes(path, 4096).decode("utf-8", "replace").split("\n", 1)[0]
    cells = line.split()
    return len(cells) == 4 and not cell_problem("relevance", cells[3])


def _blocks(paths: Sequence[Path], language: str, rejected: list[Rejected]) -> Iterator[Block]:
    for path in map(Path, paths):
        for block in in_blocks(_cells(path, (2, 3, 4), "sentence", rejected)):
            rows = [sentence_row(row.value[0], _text(row.value[1:]), language=language) for row in block]
            sentences = pa.Table.from_pylist(rows, SENTENCE_SCHEMA)
            yield Block(str(path), [row.line for row in block], sentences, PASSAGE_SCHEMA.empty_table())


def _text(cells: Sequence[str]) -> str:
    """A passage; of a document, whose cells may begin with its address, title and body."""
    return " ".join(filter(None, cells[-2:]))


def _cells(path: Path, widths: tuple[int, ...], what: str, rejected: list[Rejected]) -> Iterator[Row]:
    """The rows with a usual number of cells, cut at tabs."""
    for line, text, fault in text_lines(path):
        if fault:
            rejected.append(Rejected(str(path), line, "", "row", fault.reason, fault.detail))
            continue
        cells = text.split("\t")
        if len(cells) in widths:
            yield Row(line, cells)
        else:
            detail = f"{len(cells)} cells, wanted {' or '.join(map(str, widths))}: {text[:100]!r}"
            rejected.append(Rejected(str(path), line, writable(cells[0]), what, WRONG_WIDTH, detail))


def _judged(questions: Path, gold: Path, language: str, rejected: list[Rejected]) -> Judged:
    rows = _topics(questions) if _has_topics(questions) else _cells(questions, (2,), "question", rejected)
    asked = [
        {"question_id": row.value[0], "text": row.value[1], "language": language, "file": str(questions), "line": row.line}
        for row in rows
    ]
    lines = list(_judgements(gold, rejected))
    return judged_by(questions, gold, asked, lines, rejected, split_by_gold=True)


def _judgements(path: Path, rejected: list[Rejected]) -> Iterator[dict[str, Any]]:
    for line, text, fault in text_lines(path):
        cells = text.split() if not fault else []
        if fault:
            rejected.append(Rejected(str(path), line, "", "row", fault.reason, fault.detail))
        elif len(cells) != 4:
            detail = f"{len(cells)} cells, wanted question, 0, sentence, relevance: {text[:100]!r}"
            rejected.append(Rejected(str(path), line, cells[0] if cells else "", "gold", WRONG_WIDTH, detail))
        elif cell_problem("relevance", cells[3]):
            rejected.append(Rejected(str(path), line, cells[0], "gold", WRONG_TYPE, f"relevance: {cells[3]!r}"[:200]))
        else:
            ids = {"question_id": cells[0], "sentence_id": cells[2], "relevance": int(cells[3])}
            yield {**ids, "file": str(path), "line": line}


# --- topics ----------------------------------------------------------------------------------------------------------


def _has_topics(path: Path) -> bool:
    return b"<top" in read_bytes(path, 4096)


def _topics(path: Path) -> Iterator[Row]:
    """The numbers and titles of TREC topics; the line is that of the topic."""
    text = read_bytes(path).decode("utf-8", "replace")
    found = False
    for match in _TOPIC.finditer(text):
        body = match[1] or match[3] or ""
        number = _NUMBER.search(body) or _ATTRIBUTE.search(match[2] or "")
        titles = {kind: " ".join(html.unescape(title).split()) for kind, title in _TITLE.findall(body)}
        if number and titles:
            found = True
            yield Row(text.count("\n", 0, match.start()) + 1, (number[1], titles.get("title") or titles["query"]))
    if not found:
        raise InputError(f"{path} has no TREC topic with a number and a title or query; wanted <top> or <topic number=...>")
