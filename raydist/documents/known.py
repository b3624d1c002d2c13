"""The files behind an index, and the documents read from each; stored as one file of the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from raydist.documents.schema import Source
from raydist.files.storage import Storage, read_parquet
from raydist.records import Rejected, rejected_table

FILE = "documents/known.parquet"

_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("digest", pa.string()),
        ("ids", pa.list_(pa.string())),  # of its documents: one, or those of its rows
        ("digests", pa.list_(pa.string())),
        ("rejected", pa.list_(pa.struct(rejected_table([]).schema))),
    ]
)


@dataclass
class FileRead:
    """The result of reading a file."""

    source: Source
    documents: dict[str, str] = field(default_factory=dict)  # id -> digest of its passages
    rejected: list[Rejected] = field(default_factory=list)


@dataclass
class Known:
    """All files by id, in order."""

    files: dict[str, FileRead] = field(default_factory=dict)
    kinds: dict[str, set[str]] = field(default_factory=dict)  # of metadata
    reading: str = ""  # fingerprint of the reading settings

    def owners(self) -> dict[str, str]:
        """Each document's file: the first with that id."""
        owners: dict[str, str] = {}
        for name in sorted(self.files):
            for id in self.files[name].documents:
                owners.setdefault(id, name)
        return owners

    def with_repeated(self, owners: Mapping[str, str]) -> set[str]:
        """Files with a document that an earlier file owns."""
        return {name for name, file in self.files.items() if any(owners[id] != name for id in file.documents)}

    def digests(self, owners: Mapping[str, str]) -> dict[str, str]:
        """The digest of each document."""
        return {id: self.files[name].documents[id] for id, name in owners.items()}


def read_known(run: Storage) -> Known:
    """The record of the run's index; empty if there is none."""
    if not run.exists(FILE):
        return Known()
    table = read_parquet(run, FILE)
    said = json.loads(table.schema.metadata[b"raydist"])
    return Known(
        {row["document_id"]: _file(row) for row in table.to_pylist()},
        {name: set(kinds) for name, kinds in said["kinds"].items()},
        said["reading"],
    )


def _file(row: dict) -> FileRead:
    source = Source(*(row[name] for name in ("document_id", "uri", "size", "mtime_ns", "digest")))
    return FileRead(source, dict(zip(row["ids"], row["digests"])), [Rejected(**one) for one in row["rejected"]])


def known_table(known: Known) -> tuple[pa.Table, dict]:
    """The record as a table, and its metadata."""
    table = pa.Table.from_pylist([_row(known.files[name]) for name in sorted(known.files)], _SCHEMA)
    return table, {"kinds": {name: sorted(kinds) for name, kinds in known.kinds.items()}, "reading": known.reading}


def _row(file: FileRead) -> dict:
    lists = {"ids": list(file.documents), "digests": list(file.documents.values())}
    return asdict(file.source) | lists | {"rejected": [asdict(one) for one in file.rejected]}


def all_rejected(known: Known, others: Iterable[Rejected] = ()) -> list[Rejected]:
    """The rejected rows of all files."""
    return [*others, *(one for name in sorted(known.files) for one in known.files[name].rejected)]
