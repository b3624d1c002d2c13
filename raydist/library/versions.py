"""Versions of a library: the segments in force, and their rows that are left.

    LIBRARY/index.json        put in force last, by rename: the version and its segments, settings, retired folders by time
    LIBRARY/version-00007-*/  statistics of the rows left (bm25.py); dead-SEGMENT.npy, the deleted and replaced rows
    LIBRARY/segment-*/        see segments.py
    LIBRARY/writer.lock       see files/lease.py

A version's files are immutable. Files that a newer version drops stay for GRACE_SECONDS, for readers that are just opening
them; a reader that has opened a version keeps it, since its files are mapped.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.documents.schema import PASSAGES
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.library.segments import Segment
from raydist.library.settings import LibrarySettings
from raydist.retrieval.bm25 import write_statistics

FORMAT = 1
GRACE_SECONDS = 600.0
NO_TERMS = pa.table({"term": pa.array([], pa.large_string()), "df": pa.array([], pa.int64())})


@dataclass(frozen=True)
class Version:
    """The segments in force, open."""

    number: int
    segments: tuple[Segment, ...]
    settings: LibrarySettings
    documents: int = 0
    retired: dict[str, float] = field(default_factory=dict)  # folders out of force, and since when
    statistics: Path | None = None

    @property
    def passages(self) -> int:
        return sum(segment.num_left for segment in self.segments)

    @property
    def schema(self) -> pa.Schema:
        """The columns of all segments; a segment that lacks one has nulls there."""
        return common_schema([segment.passages.schema for segment in self.segments])


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for several; a column with incompatible types is reported."""
    try:
        return pa.unify_schemas([PASSAGES, *schemas], promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        pass
    seen: dict[str, pa.DataType] = {}
    for item in (item for schema in schemas for item in schema):
        known = seen.setdefault(item.name, item.type)
        try:
            pa.unify_schemas([pa.schema([(item.name, known)]), pa.schema([item])], promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            raise InputError(
                f"column {item.name} holds {known} in some passages and {item.type} in others; give it one type, or two names"
            ) from None
    raise InputError("the columns of these passages cannot be one table; give each column one type")


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with exactly these columns: cast where types differ, nulls where a column is missing."""
    columns = [
        table[item.name].cast(item.type) if item.name in table.column_names else pa.nulls(len(table), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)


def is_library(storage: Storage) -> bool:
    return storage.exists("index.json") and storage.read_json("index.json").get("kind") == "library"


def read_version(storage: Storage) -> Version:
    """The version in force: on a disk in place, from an object store by copies of its folders, each fetched once."""
    facts = storage.read_json("index.json")
    if facts.get("format") != FORMAT:
        raise InputError(
            f"{storage.path('index.json')} is of format {facts.get('format')}, wanted {FORMAT}; build the index again"
        )
    statistics = storage.local_copy(facts["statistics"])
    segments = []
    for name, has_dead in facts["segments"].items():
        dead = np.load(statistics / f"dead-{name}.npy", allow_pickle=False) if has_dead else ()
        segments.append(Segment(storage.local_copy(name), dead, name))
    settings = LibrarySettings.of(facts["settings"])
    return Version(facts["version"], tuple(segments), settings, facts["documents"], facts["retired"], statistics)


def write_version(folder: Path, before: Version, segments: Sequence[Segment], settings: LibrarySettings) -> dict[str, Any]:
    """Write the files of the version after ``before``; return the content of its index.json."""
    left = [segment for segment in segments if segment.num_left]
    number, now = before.number + 1, time.time()
    statistics = folder / f"version-{number:05d}-{uuid.uuid4().hex[:6]}"  # a writer that lost its lock overwrites no other's
    counts = (table for tables in ([NO_TERMS], (segment.counts() for segment in left)) for table in tables)
    rows, length = sum(segment.num_left for segment in left), sum(segment.total_length() for segment in left)
    write_statistics(statistics, counts, rows, length)
    for segment in left:
        if len(segment.dead):
            np.save(statistics / f"dead-{segment.name}.npy", segment.dead, allow_pickle=False)
    gone = {segment.name for segment in before.segments} - {segment.name for segment in left}
    gone |= {before.statistics.name} if before.statistics else set()
    names = [segment.kept_column("document_id") for segment in left]
    documents = pc.count_distinct(pa.chunked_array(names, pa.string())).as_py() if names else 0
    return {
        "format": FORMAT,
        "kind": "library",
        "version": number,
        "statistics": statistics.name,
        "segments": {segment.name: bool(len(segment.dead)) for segment in left},
        "settings": settings.plain(),
        "passages": rows,
        "documents": documents,
        "columns": {item.name: str(item.type) for item in common_schema([segment.passages.schema for segment in left])},
        "retired": before.retired | dict.fromkeys(sorted(gone), now),
    }
