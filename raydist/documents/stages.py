"""Documents as a stage: files -> passages, in parts that are groups of files, read and parsed by the workers."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from raydist.corpus.rejected import CHANGED, NOT_A_FILE, Fault
from raydist.documents.apart import Apart
from raydist.documents.document import Document, File
from raydist.documents.formats import ROWS, format_of
from raydist.documents.formats.rows import Problem
from raydist.documents.formats.rows import read as read_rows
from raydist.documents.language import detected, known_language
from raydist.documents.metadata import Value, column_name, columns_by_kind, names_and_kinds, to_json, wanted
from raydist.documents.passages import pack
from raydist.documents.scan import Root, places, rejected_file
from raydist.documents.schema import PASSAGES, Source
from raydist.errors import InputError
from raydist.files.stage import ASIDE, Made, Part, Stage, Worker
from raydist.files.storage import StorageError, file_digest, fingerprint, read_parquet
from raydist.records import Rejected, rejected_table

DOCUMENTS = pa.schema([("document_id", pa.string()), ("file", pa.string()), ("passages", pa.int32()), ("digest", pa.string())])
FETCH_BYTES = 1 << 20
MOST_FILES = 500  # per part


@dataclass(frozen=True)
class Reading:
    """Settings for reading documents: all that passages depend on besides the files."""

    passage_words: int = 120
    columns: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    language: str = ""
    languages: tuple[str, ...] = ()
    max_file_bytes: int = 1 << 28
    max_seconds: float = 120.0


@dataclass(frozen=True)
class PassageCounts:
    """Counts of a part's files."""

    files: int
    documents: int
    passages: int
    bytes: int
    rejected: int
    metadata: Mapping[str, list[str]]  # the kinds of each column


@dataclass(frozen=True)
class DocumentPassages(Stage):
    """Files -> passages, with tables of documents and rejected rows. Memory: the files of a part."""

    name: ClassVar[str] = "passages"

    reading: Reading
    part_bytes: int
    files: tuple[Source, ...]
    roots: tuple[Root, ...] = field(metadata=ASIDE)

    @property
    def identity(self) -> dict[str, Any]:
        """The identity with a digest of the files, which are too many to list."""
        known = [source.known_by for source in self.files]
        return {"version": self.version, **_plain(self.reading), "part_bytes": self.part_bytes, "files": fingerprint(known)}

    @cached_property
    def groups(self) -> list[range]:
        """The numbers of each part's files."""
        groups, first, held = [], 0, 0
        for number, source in enumerate(self.files):
            if number > first and (held + source.size > self.part_bytes or number - first >= MOST_FILES):
                groups.append(range(first, number))
                first, held = number, 0
            held += source.size
        return [*groups, range(first, len(self.files))]

    @property
    def parts(self) -> int:
        return len(self.groups)

    def open(self, worker: Worker) -> Callable[[int], Part]:
        apart = Apart(self.reading.max_seconds)
        return lambda number: self._part([self.files[file] for file in self.groups[number]], apart)

    def _part(self, sources: Sequence[Source], apart: Apart) -> Part:
        made, where = _Passages(self.reading), places(sources, self.roots)
        for source in sources:
            root, name = where[source.document_id]
            try:
                with fetched(root, name, source, self.reading.max_file_bytes) as file:
                    for found in _read(file, self.reading, apart):
                        if isinstance(found, Problem):
                            made.reject(source, found)
                        else:
                            made.add(source, found)
            except Fault as fault:
                made.rejected.append(rejected_file(source.document_id, fault))
        return made.part(sources)


def _plain(reading: Reading) -> dict[str, Any]:
    """The settings for the identity, as plain mappings, whose order does not matter."""
    return {**vars(reading), "columns": dict(reading.columns), "metadata": dict(reading.metadata)}


def _read(file: File, reading: Reading, apart: Apart) -> Iterator[Document | Problem]:
    """The documents of a file, or a single one parsed in a separate process."""
    if format_of(file.name) in ROWS:
        yield from read_rows(file, reading.columns)
    else:
        yield apart.read(file)


# --- the files of a part ---------------------------------------------------------------------------------------------


@contextmanager
def fetched(root: Root, name: str, source: Source, max_bytes: int) -> Iterator[File]:
    """A file on this node, unchanged since the scan; raises a Fault if it changed."""
    try:
        if "://" not in root.uri:
            path = Path(root.uri, name)
            if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
                raise Fault(NOT_A_FILE, "is none any more")
            if file_digest(path) != source.digest:
                raise Fault(CHANGED, "it is read with the next command")
            yield File(path, source.document_id, max_bytes)
            return
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / f"file{''.join(Path(name).suffixes[-2:])}"
            _copy(root, name, path, source.size)
            yield File(path, source.document_id, max_bytes)
    except OSError as error:
        raise _not_there(root, name, error) from None


def _not_there(root: Root, name: str, error: OSError) -> Exception:
    """A missing file counts as changed. Errors that a retry may fix stop the command: finished parts are kept."""
    if "://" in root.uri:
        return StorageError(f"cannot read {root.uri_of(name)}: {error}. Mend that and run the same command again")
    if isinstance(error, FileNotFoundError | NotADirectoryError) and os.path.isdir(root.uri):
        return Fault(CHANGED, "is gone")
    return InputError(f"{root.uri_of(name)}: {error.strerror or error}; every node must be able to read documents.files")


def _copy(root: Root, name: str, path: Path, size: int) -> None:
    with root.storage.open_input(name) as source, open(path, "wb") as target:
        if source.size() != size:
            raise Fault(CHANGED, "it is read with the next command")
        while block := source.read(FETCH_BYTES):
            target.write(block)


# --- the passages of a part ------------------------------------------------------------------------------------------


class _Passages:
    """Collects the rows of a part."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.columns: dict[str, list[Any]] = {name: [] for name in PASSAGES.names}
        self.metadata: list[Mapping[str, Value]] = []  # of each passage
        self.documents: list[dict[str, Any]] = []
        self.rejected: list[Rejected] = []

    def reject(self, source: Source, problem: Problem) -> None:
        fault = problem.fault
        row = Rejected(source.document_id, problem.line, problem.id, "document", fault.reason, fault.detail, "row")
        self.rejected.append(row)

    def add(self, source: Source, document: Document) -> None:
        """Add the passages of a document; a row has its own id."""
        reading = self.reading
        id = document.id or source.document_id
        language = known_language(document.language) or reading.language or detected(document.blocks, reading.languages)
        title = document.title or (Path(source.document_id).stem if not document.id else "")
        metadata = self._metadata(source, id, document)
        digest = hashlib.blake2b(json.dumps([title, language, _jsonable(metadata)], sort_keys=True).encode(), digest_size=16)
        number = -1
        for number, passage in enumerate(pack(document.blocks, reading.passage_words, language or "en")):
            row = (f"{id}#{number}", id, title, passage.headings, passage.page, passage.line, passage.text, language)
            for column, value in zip(self.columns.values(), row):
                column.append(value)
            self.metadata.append(metadata)
            digest.update(json.dumps(row[3:7]).encode())
        known = {"document_id": id, "file": source.document_id, "passages": number + 1, "digest": digest.hexdigest()}
        self.documents.append(known)

    def _metadata(self, source: Source, id: str, document: Document) -> dict[str, Value]:
        """The kept columns, as the kinds of the config."""
        kept = self.reading.metadata
        if not kept:
            return document.metadata
        found: dict[str, Value] = {}
        for name, kind in kept.items():
            value = document.metadata.get(column_name(name))
            try:
                if value is not None:
                    found[column_name(name)] = wanted(value, kind, name)
            except Fault as fault:
                row = Rejected(source.document_id, document.line, id, "metadata", fault.reason, fault.detail, "row")
                self.rejected.append(row)
        return found

    def part(self, sources: Sequence[Source]) -> Part:
        where = f"{sources[0].document_id} to {sources[-1].document_id}"
        metadata = columns_by_kind(self.metadata, where)
        table = pa.table({name: pa.array(self.columns[name], PASSAGES.field(name).type) for name in PASSAGES.names} | metadata)
        counts = PassageCounts(
            files=len(sources),
            documents=len(self.documents),
            passages=len(table),
            bytes=sum(source.size for source in sources),
            rejected=len(self.rejected),
            metadata={name: sorted(kinds) for name, kinds in sorted(names_and_kinds(metadata).items())},
        )
        beside = {"documents": pa.Table.from_pylist(self.documents, DOCUMENTS), "rejected": rejected_table(self.rejected)}
        return Part(table, beside, counts)


def _jsonable(metadata: Mapping[str, Value]) -> dict[str, Any]:
    return {name: to_json(value) for name, value in metadata.items()}


# --- reading the results ---------------------------------------------------------------------------------------------


def made_documents(made: Made) -> pa.Table:
    """The documents of all parts."""
    return _beside(made, "documents", DOCUMENTS)


def made_rejected(made: Made) -> pa.Table:
    """The rejected rows of all parts."""
    return _beside(made, "rejected", rejected_table([]).schema)


def _beside(made: Made, name: str, schema: pa.Schema) -> pa.Table:
    parts = [read_parquet(made.folder, f"{name}-{number:05d}.parquet") for number in range(len(made.manifest.parts))]
    return pa.concat_tables([table.cast(schema) for table in parts] or [schema.empty_table()])


def made_kinds(made: Made) -> dict[str, set[str]]:
    """The kinds of each column of metadata, over all parts."""
    kinds: dict[str, set[str]] = {}
    for part in made.manifest.parts:
        for name, own in part.info["metadata"].items():
            kinds.setdefault(name, set()).update(own)
    return kinds


def made_passages(made: Made, keep: Callable[[pa.Table], np.ndarray] | None = None) -> Iterator[pa.Table]:
    """The passages of each part, with metadata by name and kind; only of documents selected by `keep`, if given."""
    for number, table in enumerate(made.tables()):
        if keep:
            documents = read_parquet(made.folder, f"documents-{number:05d}.parquet")
            mask = np.repeat(keep(documents), documents["passages"].to_numpy())
            table = table.filter(pa.array(mask))
        yield table
