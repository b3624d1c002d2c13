"""What a format is: of files of questions (``ReaderFormat``), and of corpora (``CorpusFormat``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from raydist.corpus.checks import ExampleChecks
from raydist.corpus.open_set import OpenSet, RetrievalSet
from raydist.errors import InputError


class ReaderFormat:
    """A shape that questions with their passages and answers come in.

    Rows come from JSON Lines, JSON lists, Parquet or CSV. A format of rows has ``recognises`` and ``add``; one of whole JSON
    objects has ``recognises_document``, perhaps ``begins``, and ``add_document``.
    """

    keys: ClassVar[tuple[str, ...]] = ()  # of its rows, beside columns.COLUMNS: no others are read of a Parquet file
    own_columns: ClassVar[bool] = True  # it finds its rows' columns by names of its own: none have to be there or to be mapped
    also_reads: ClassVar[frozenset[str]] = frozenset()  # formats that files may look like when this one is asked for
    unanswered_is_impossible: ClassVar[bool] = False

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        """Whether a row is of this format; `names` are those that columns.COLUMNS have in the file."""
        return False

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        """Give the questions of a row to `checks.add`; raise Fault where it cannot be taken apart."""
        raise NotImplementedError

    def recognises_document(self, document: Mapping[str, Any], as_row: str) -> bool:
        """Whether a JSON object is of this format; `as_row` is the format that it would have as a row, or empty."""
        return False

    def begins(self, text: str) -> bool:
        """Whether a file that begins so is certainly of this format: it is then not read twice."""
        return False

    def add_document(self, document: dict[str, Any], checks: ExampleChecks) -> None:
        """Give the questions of a document to `checks.add`; raise InputError where it has another shape."""
        raise NotImplementedError


class Container(ReaderFormat):
    """A file container; its first row determines the format of its rows."""


@dataclass(frozen=True)
class CorpusFiles:
    """Where a corpus is, and what has to be said of its files."""

    paths: Sequence[Path]
    split: str = "train"  # whose questions and gold answers
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of each table: our name -> the file's
    boundaries: Path | None = None  # of sentences, by MultiReQA

    def exactly(self, *names: str) -> Sequence[Path]:
        """The paths, which must be as many as these names."""
        if len(self.paths) != len(names):
            raise InputError(f"wanted {len(names)} in files ({', '.join(names)}), got {len(self.paths)}")
        return self.paths


class CorpusFormat(Protocol):
    """How a corpus, its questions and its gold answers are kept in files."""

    def open(self, files: CorpusFiles) -> OpenSet | RetrievalSet:
        """The corpus; InputError where the files are not of this format."""
        ...


@runtime_checkable
class CorpusOfRows(CorpusFormat, Protocol):
    """A format that stores its corpus as rows, so that rows can be added."""

    def open_rows(self, paths: Sequence[Path], columns: Mapping[str, str]) -> OpenSet:
        """Additional rows of a corpus, without questions."""
        ...
