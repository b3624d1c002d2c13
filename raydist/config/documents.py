"""The documents to read, and how they become passages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from raydist.config.section import ROWS, Section, key, listed

DOCUMENT_COLUMNS = ("id", "text", "title", "language")
Language = Annotated[str, Field(pattern="^[a-z]{2}$")]


class DocumentsConfig(Section):
    """Documents that are read (docs/documents.md): Markdown, HTML, plain text, PDF, Word, JSON Lines, CSV, TSV, Parquet."""

    files: Annotated[list[str], BeforeValidator(listed)] = key(
        [], "Folders, files, globs and URIs of documents", ROWS, later=True
    )
    columns: dict[str, str] = key({}, "Columns of rows by our names: {text: theirs}", ROWS, later=True)
    metadata: dict[str, Literal["auto", "string", "int", "float", "bool", "date", "timestamp"]] = key(
        {}, "Columns of metadata that are kept, with their types; empty: all, typed as they come", ROWS, later=True
    )
    passage_words: int = key(120, "Length that a passage has at most", ROWS, unit="words", ge=10, le=2000, later=True)
    language: Language | None = key(
        None, "Language of documents that declare none; null: as their words look", ROWS, later=True
    )
    languages: list[Language] = key([], "Languages that are told apart; empty: all that can be", ROWS, later=True)
    max_file_bytes: int = key(
        1 << 28, "Size above which a file is rejected, packed or unpacked", ROWS, unit="bytes", ge=1, later=True
    )
    max_seconds: float = key(
        120.0, "Time after which the parsing of a file is given up", ROWS, unit="seconds", gt=0, later=True
    )
    part_bytes: int = key(16 << 20, "Files in a part of the stage", ROWS, unit="bytes", ge=1, later=True)

    def _problems(self) -> Iterator[str]:
        for name in self.columns:
            if name not in DOCUMENT_COLUMNS:
                yield f"columns: there is no {name!r} to map; there are {', '.join(DOCUMENT_COLUMNS)}"
