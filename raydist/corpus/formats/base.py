"""Interfaces of formats: of files of questions (``ReaderFormat``), and of corpora (``CorpusFormat``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from raydist.corpus.checks import ExampleChecks
from raydist.corpus.open_set import OpenSet, RetrievalSet
from raydist.errors import InputError


class ReaderFormat:
    """A format of questions with their passages and answers.

    Rows come from JSON Lines, JSON lists, Parquet or CSV. A format of rows has ``recognises`` and ``add``; one of whole JSON
    objects has ``recognises_document``, optionally ``begins``, and ``add_document``.
    """

    keys: ClassVar[tuple[str, ...]] = ()  # of its rows, besides columns.COLUMNS: no others are read from a Parquet file
    own_columns: ClassVar[bool] = True  # its columns have fixed names: none are required or mapped
    also_reads: ClassVar[frozenset[str]] = frozenset()  # recognised formats that may be read as this one
    unanswered_is_impossible: ClassVar[bool] = False
    has_splits: ClassVar[bool] = False  # one file holds the questions of several splits

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        """Whether a row is of this format; `names`: the file's names of columns.COLUMNS."""
        return False

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        """Pass the questions of a row to `checks.add`; raise Fault if it cannot be parsed."""
        raise NotImplementedError

    def recognises_document(self, document: Mapping[str, Any], as_row: str) -> bool:
        """Whether a JSON object is of this format; `as_row`: its format as a row, or empty."""
        return False

    def check_beside(self, path: Path) -> None:
        """Require what a file of this format needs beside it; raises InputError, before anything is read."""

    def begins(self, text: str) -> bool:
        """Whether a file with this beginning is certainly of this format; saves a second read."""
        return False

    def add_document(self, document: dict[str, Any], checks: ExampleChecks) -> None:
        """Pass the questions of a document to `checks.add`; raise InputError if its structure is wrong."""
        raise NotImplementedError


class Container(ReaderFormat):
    """A file container; its first row determines the format of its rows."""


@dataclass(frozen=True)
class CorpusFiles:
    """The location of a corpus, and options for its files."""

    paths: Sequence[Path]
    split: str = "train"  # of the questions and gold answers
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of each table: our name -> the file's
    boundaries: Path | None = None  # of sentences, by MultiReQA
    language: str | None = None  # of rows that state none

    def exactly(self, *names: str) -> Sequence[Path]:
        """The paths; their number must match the names."""
        if len(self.paths) != len(names):
            raise InputError(f"wanted {len(names)} in files ({', '.join(names)}), got {len(self.paths)}")
        return self.paths


class CorpusFormat(Protocol):
    """A file format of a corpus, its questions and its gold answers."""

    def open(self, files: CorpusFiles) -> OpenSet | RetrievalSet:
        """The corpus; raises InputError if the files are not of this format."""
        ...


@runtime_checkable
class CorpusInFolder(CorpusFormat, Protocol):
    """A format whose files may be a folder with names of its own."""

    def files_of(self, folder: Path, split: str) -> list[Path]:
        """The files of a split; raises InputError if some are missing, with the splits that are there."""
        ...


@runtime_checkable
class ChecksFiles(CorpusFormat, Protocol):
    """A format that sees by the first rows whether files are its own."""

    def check(self, files: CorpusFiles) -> None:
        """Raise InputError if files are not of this format, before a corpus of any size is read."""
        ...


@runtime_checkable
class CorpusOfRows(CorpusFormat, Protocol):
    """A format that stores its corpus as rows, so rows can be added."""

    def open_rows(self, paths: Sequence[Path], columns: Mapping[str, str]) -> OpenSet:
        """Additional rows of a corpus, without questions."""
        ...
