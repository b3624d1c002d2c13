"""The documents to read, and how they become passages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from raydist.config.section import ROWS, Section, key, listed

DOCUMENT_COLUMNS = ("id", "text", "title", "language")
Language = Annotated[str, Field(pattern="^[a-z]{2}$")]


class DocumentsConfig(Section):
    """Documents to read (docs/documents.md): Markdown, HTML, plain text, PDF, Word, JSON Lines, CSV, TSV, Parquet."""

    files: Annotated[list[str], BeforeValidator(listed)] = key(
        [], "Folders, files, globs and URIs of documents", ROWS, later=True
    )
    columns: dict[str, str] = key({}, "Names of the columns in the files: {text: their name}", ROWS, later=True)
    metadata: dict[str, Literal["auto", "string", "int", "float", "bool", "date", "timestamp"]] = key(
        {}, "Metadata columns to keep, with their types; empty: all, with inferred types", ROWS, later=True
    )
    passage_words: int = key(120, "Maximum length of a passage", ROWS, unit="words", ge=10, le=2000, later=True)
    language: Language | None = key(
        None, "Language of documents that declare none; null: detected from the text", ROWS, later=True
    )
    languages: list[Language] = key([], "Candidate languages for detection; empty: all supported ones", ROWS, later=True)
    max_file_bytes: int = key(
        1 << 28, "Maximum size of a file, compressed or not; larger ones are rejected", ROWS, unit="bytes", ge=1, later=True
    )
    max_seconds: float = key(120.0, "Time limit for parsing one file", ROWS, unit="seconds", gt=0, later=True)
    part_bytes: int = key(16 << 20, "Total size of the files in one part of the stage", ROWS, unit="bytes", ge=1, later=True)

    def _problems(self) -> Iterator[str]:
        for name in self.columns:
            if name not in DOCUMENT_COLUMNS:
                yield f"columns: unknown name {name!r}; known are {', '.join(DOCUMENT_COLUMNS)}"
