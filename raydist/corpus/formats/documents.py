"""Documents {document_id or _id, text, title?, language?}, cut into passages and sentences; without questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.corpus.checks import whole_and_new
from raydist.corpus.columns import read_table
from raydist.corpus.cutting import cut_documents, cut_passages
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.ids import KnownIds
from raydist.corpus.open_set import Block, Judged, OpenSet
from raydist.corpus.paths import check_there, expand_paths
from raydist.corpus.rejected import EMPTY_DOCUMENT
from raydist.corpus.rows import table_rows
from raydist.records import Rejected

_DOCUMENT = ("document_id", "text", "title", "language")


class Documents:
    """Any number of files or globs."""

    def open(self, files: CorpusFiles) -> OpenSet:
        paths = [Path(file) for file in expand_paths([str(path) for path in files.paths])]
        return open_documents(paths, files.columns.get("corpus"), files.language)

    def open_rows(self, paths: Sequence[Path], columns: Mapping[str, str]) -> OpenSet:
        return open_documents(paths, columns)


def open_documents(paths: Sequence[Path], columns: Mapping[str, str] | None = None, language: str | None = None) -> OpenSet:
    """``columns``: our name -> the file's."""
    check_there(*paths)
    rejected: list[Rejected] = []
    return OpenSet(", ".join(map(str, paths)), _document_blocks(paths, columns or {}, rejected, language), Judged, rejected)


def _document_blocks(
    paths: Sequence[Path], columns: Mapping[str, str], rejected: list[Rejected], language: str | None
) -> Iterator[Block]:
    known = KnownIds()
    for path in map(Path, paths):
        names = _id_column(path) | dict(columns)
        for block in read_table(path, _DOCUMENT, names, what="document", rejected=rejected, language=language):
            lines = block["line"].to_pylist()
            documents = whole_and_new(block, "document", EMPTY_DOCUMENT, str(path), lines, known, rejected)
            passages = cut_documents(documents)
            sentences = cut_passages(passages)
            line_of = dict(zip(documents["document_id"].to_pylist(), documents["line"].to_pylist()))
            yield Block(str(path), [line_of[id] for id in sentences["document_id"].to_pylist()], sentences, passages)


def _id_column(path: Path) -> dict[str, str]:
    first: dict[str, Any] = next((row.value for row in table_rows(path) if not row.fault), {})
    return {"document_id": "_id"} if "_id" in first and "document_id" not in first else {}
