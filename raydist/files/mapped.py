"""Rows by number from memory-mapped Arrow files: the base of every set of training rows.

Plain numbers are read into arrays; lists (tokens) stay on disk, mapped, and are sliced row by row without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


class MappedRows:
    """The rows of some Arrow IPC files, or of tables, as one sequence."""

    def __init__(self, parts: Sequence[Path | pa.Table]) -> None:
        self.tables = [part if isinstance(part, pa.Table) else map_table(part) for part in parts]
        self.first = np.concatenate([[0], np.cumsum([table.num_rows for table in self.tables])]).astype(np.int64)
        self._lists: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def __len__(self) -> int:
        return int(self.first[-1])

    def column(self, name: str) -> np.ndarray:
        """A column of plain numbers over all rows."""
        parts = [table[name].to_numpy() for table in self.tables]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def list_lengths(self, name: str) -> np.ndarray:
        """The number of values in each row of a list column."""
        return np.concatenate([np.diff(starts) for _, starts in self._flat(name)] or [np.empty(0, np.int64)])

    def values(self, name: str, row: int) -> np.ndarray:
        """One row of a list column."""
        part = int(np.searchsorted(self.first, row, side="right")) - 1
        flat, starts = self._flat(name)[part]
        within = row - int(self.first[part])
        return flat[starts[within] : starts[within + 1]]

    group: Callable[[np.ndarray], Any]  # in a subclass: data about some rows that every rank needs
    batch: Callable[..., Any]  # padded tensors of some rows

    def step_batches(
        self, groups: Sequence[np.ndarray], *, rank: int, ranks: int, pad_id: int, seed: int, step: int
    ) -> list[Any]:
        """This rank's part of one step: a batch for each group."""
        known = tuple(self.group(rows) for rows in groups)
        batches = []
        for number, rows in enumerate(groups):
            mine = np.arange(rank, len(rows), ranks)
            batches.append(self.batch(rows[mine], pad_id=pad_id, groups=known, group=number, mine=mine, seed=seed, step=step))
        return batches

    def _flat(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each part: the flat values of a list column and the start of each row."""
        if name not in self._lists:
            self._lists[name] = [_flat(table[name]) for table in self.tables]
        return self._lists[name]


def map_table(file: Path) -> pa.Table:
    """The rows of an Arrow IPC file, mapped into memory."""
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def pad_tokens(
    ids: Sequence[np.ndarray], types: Sequence[np.ndarray], pad_id: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Token ids, the mask of real ones, and token types (None if no row has any) as arrays [rows, longest]."""
    lengths = np.array([len(row) for row in ids], np.int64)
    longest = int(lengths.max()) if len(ids) else 1
    padded = np.full((len(ids), longest), pad_id, np.int64)
    kinds = np.zeros((len(ids), longest), np.int64)
    for i, (row, kind) in enumerate(zip(ids, types)):
        padded[i, : len(row)] = row
        kinds[i, : len(kind)] = kind
    return padded, np.arange(longest) < lengths[:, None], kinds if any(len(kind) for kind in types) else None


def _flat(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no rows at all
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    return array.values.to_numpy(), array.offsets.to_numpy().astype(np.int64)
