"""A segment: some passages with their words and vectors, in an immutable folder.

    SEGMENT/passages.arrow    the passages by id (PASSAGES and metadata), memory-mapped
    SEGMENT/bm25/, dense/     a shard each, as retrieval/bm25.py and dense.py write them; their rows are those of the passages

A library's version records which rows of a segment are left: deleted and replaced rows stay in the files until a compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.documents.schema import PASSAGES
from raydist.errors import InputError
from raydist.files.mapped import map_table
from raydist.retrieval import bm25


def indexed_texts(passages: pa.Table, with_them: bool) -> list[str]:
    """The texts for words and vectors: the text, preceded by its title and headings if ``with_them``."""
    texts = passages["text"].to_pylist()
    if not with_them:
        return texts
    titles, headings = passages["title"].to_pylist(), passages["headings"].to_pylist()
    return [with_headings(*of) for of in zip(titles, headings, texts)]


def with_headings(title: str | None, headings: Sequence[str] | None, text: str) -> str:
    return "\n".join([*dict.fromkeys(name for name in (title, *(headings or ())) if name), text])


def check_passages(passages: pa.Table) -> pa.Table:
    """Passages with the columns of PASSAGES first, in their types; missing columns and null ids are reported."""
    missing = [name for name in ("passage_id", "document_id", "text") if name not in passages.column_names]
    if missing:
        raise InputError(f"passages have no column {', '.join(missing)}; there are {', '.join(passages.column_names)}")
    columns = []
    for field in PASSAGES:
        if field.name in passages.column_names:
            columns.append(passages[field.name].cast(field.type))
        else:
            empty = "" if pa.types.is_string(field.type) else None
            columns.append(pa.repeat(pa.scalar(empty, field.type), len(passages)))
    for name, column in zip(("passage_id", "document_id"), columns):
        if column.null_count:
            raise InputError(f"{column.null_count} passages have no {name}")
    columns[PASSAGES.get_field_index("text")] = pc.fill_null(columns[PASSAGES.get_field_index("text")], "")
    found = pa.table(columns, schema=PASSAGES)
    for name in passages.column_names:
        if name not in PASSAGES.names:
            found = found.append_column(name, passages[name])
    return found


class Segment:
    """A mapped segment; ``dead`` are its deleted and replaced rows."""

    def __init__(self, folder: Path, dead: Sequence[int] | np.ndarray = (), name: str = "") -> None:
        self.folder, self.name = folder, name or folder.name  # a copy from an object store has another
        self.passages = map_table(folder / "passages.arrow")
        self.words = bm25.Shard(folder / "bm25")
        self.dead = np.asarray(dead, np.int64)

    def __len__(self) -> int:
        return len(self.passages)

    @property
    def num_left(self) -> int:
        return len(self) - len(self.dead)

    @cached_property
    def left(self) -> np.ndarray:
        """A mask of the rows that are left."""
        mask = np.ones(len(self), bool)
        mask[self.dead] = False
        return mask

    def without(self, column: str, values: pa.Array) -> Segment:
        """The same without the rows of these passages or documents."""
        gone = self.find(column, values)
        return self if not len(gone) else Segment(self.folder, np.union1d(self.dead, gone), self.name)

    def find(self, column: str, values: pa.Array) -> np.ndarray:
        """The rows of these passages or documents that are left."""
        is_one = pc.is_in(self.passages[column], value_set=values.cast(pa.string())).to_numpy()
        return np.flatnonzero(is_one & self.left)

    def kept_passages(self) -> pa.Table:
        """The passages that are left."""
        return self.passages if not len(self.dead) else self.passages.filter(pa.array(self.left))

    def kept_column(self, name: str) -> pa.Array:
        return pa.concat_arrays(self.kept_passages()[name].chunks)

    def kept_vectors(self) -> np.ndarray:
        """The vectors of the passages that are left."""
        return np.load(self.folder / "dense" / "vectors.npy", mmap_mode="r", allow_pickle=False)[self.left]

    def counts(self) -> pa.Table:
        """The number of rows left that contain each term."""
        return self.words.counts(self.left if len(self.dead) else None)

    def total_length(self) -> int:
        return self.words.length_of(self.left) if len(self.dead) else self.words.total_length
