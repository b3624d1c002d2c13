"""Windows by row number from memory-mapped Arrow files, and batches made of them.

Memory: a few numbers per row are read into arrays (about 80 bytes a row); tokens stay on disk, mapped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from raydist.objectives.base import Batch, GroupRows


class WindowRows:
    """All windows of a data set (reader/features.py) as one sequence of rows."""

    def __init__(self, files: Sequence[Path], sets: Sequence[Path] = ()) -> None:
        """`sets` are the n-best sets of hard learning (reader/nbest_sets.py), file for file, row for row."""
        self.tables = [_mapped(file) for file in files]
        self.sets = [_mapped(file) for file in sets]
        self.first = np.concatenate([[0], np.cumsum([table.num_rows for table in self.tables])]).astype(np.int64)
        examples = [json.loads(table.schema.metadata[b"raydist"])["examples"] for table in self.tables]
        self.first_example = np.concatenate([[0], np.cumsum(examples)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.first[-1])

    def column(self, name: str) -> np.ndarray:
        """A column of plain numbers over all rows."""
        parts = [table[name].to_numpy() for table in self.tables]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @cached_property
    def examples(self) -> np.ndarray:
        """Whose window each row is: the number of its example over all parts."""
        parts = [table["example"].to_numpy() + first for table, first in zip(self.tables, self.first_example)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @cached_property
    def _numbers(self) -> dict[str, np.ndarray]:
        names = ("passage", "answer", "cls", "question_start", "question_end", "passage_start", "passage_end", "start", "end")
        return {name: self.column(name).astype(np.int64) for name in names} | {
            "has_answer": self.column("has_answer").astype(bool)
        }

    @cached_property
    def _lists(self) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
        """For each list column and each part: the flat values and where each row begins. No copy."""
        own = dict.fromkeys(("input_ids", "token_types", "char_start", "char_end"), self.tables)
        of_sets = dict.fromkeys(("nbest_start", "nbest_end", "nbest_type"), self.sets) if self.sets else {}
        return {name: [_flat(table[name]) for table in tables] for name, tables in (own | of_sets).items()}

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.concatenate([np.diff(starts) for _, starts in self._lists["input_ids"]] or [np.empty(0, np.int64)])

    def offsets(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Characters of some rows' passage tokens: all starts, all ends, and the place that token 0 of each row would have."""
        starts = [self.values("char_start", row) for row in rows]
        ends = [self.values("char_end", row) for row in rows]
        before = np.concatenate([[0], np.cumsum([len(part) for part in starts])])[:-1]
        first = self._numbers["passage_start"][rows]
        return np.concatenate(starts), np.concatenate(ends), before - first

    def values(self, name: str, row: int) -> np.ndarray:
        """One row of a list column."""
        part = int(np.searchsorted(self.first, row, side="right")) - 1
        flat, starts = self._lists[name][part]
        within = row - int(self.first[part])
        return flat[starts[within] : starts[within + 1]]

    def group(self, rows: np.ndarray) -> GroupRows:
        """What every rank knows about some rows."""
        numbers = self._numbers
        return GroupRows(
            row=rows,
            has_answer=numbers["has_answer"][rows],
            passage=numbers["passage"][rows],
            answer=numbers["answer"][rows],
            tokens=self.lengths[rows].astype(np.int64),
            passage_tokens=(numbers["passage_end"] - numbers["passage_start"])[rows],
        )

    def batch(
        self, rows: np.ndarray, *, pad_id: int, groups: tuple[GroupRows, ...] = (), group: int = 0, mine=None, seed=0, step=0
    ) -> Batch:
        """Padded tensors of some rows."""
        longest = int(self.lengths[rows].max()) if len(rows) else 1
        ids = np.full((len(rows), longest), pad_id, np.int64)
        types = np.zeros((len(rows), longest), np.int64)
        has_types = False
        for i, row in enumerate(rows):
            tokens, kinds = self.values("input_ids", row), self.values("token_types", row)
            ids[i, : len(tokens)] = tokens
            types[i, : len(kinds)] = kinds
            has_types |= len(kinds) > 0
        position = np.arange(longest)
        number = {name: values[rows] for name, values in self._numbers.items()}

        def between(start: str, end: str) -> torch.Tensor:
            return torch.from_numpy((position >= number[start][:, None]) & (position < number[end][:, None]))

        return Batch(
            input_ids_BT=torch.from_numpy(ids),
            attention_BT=torch.from_numpy(position < self.lengths[rows][:, None]),
            question_BT=between("question_start", "question_end"),
            passage_BT=between("passage_start", "passage_end"),
            start_B=torch.from_numpy(number["start"]),
            end_B=torch.from_numpy(number["end"]),
            has_answer_B=torch.from_numpy(number["has_answer"]),
            token_types_BT=torch.from_numpy(types) if has_types else None,
            groups=groups or (self.group(rows),),
            group=group,
            mine=torch.arange(len(rows)) if mine is None else torch.from_numpy(mine),
            seed=seed,
            step=step,
            extras={"cls_B": torch.from_numpy(number["cls"])} | (self._nbest(rows) if self.sets else {}),
        )

    def _nbest(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """The n-best sets of some rows, padded to the longest."""
        lists = {name: [self.values(f"nbest_{name}", row) for row in rows] for name in ("start", "end", "type")}
        longest = max([len(values) for values in lists["start"]] + [1])
        padded = {name: np.full((len(rows), longest), -1, np.int64) for name in lists}
        for name, values in lists.items():
            for i, value in enumerate(values):
                padded[name][i, : len(value)] = value
        return {
            "nbest_start_BK": torch.from_numpy(padded["start"].clip(min=0)),
            "nbest_end_BK": torch.from_numpy(padded["end"].clip(min=0)),
            "nbest_mask_BK": torch.from_numpy(padded["start"] >= 0),
            "nbest_type_BK": torch.from_numpy(padded["type"].clip(min=0)),
            "nbest_gold_B": torch.from_numpy(self._gold[rows].clip(min=0)),
        }

    @cached_property
    def _gold(self) -> np.ndarray:
        return np.concatenate([table["nbest_gold"].to_numpy() for table in self.sets]).astype(np.int64)

    def step_batches(
        self, groups: Sequence[np.ndarray], *, rank: int, ranks: int, pad_id: int, seed: int, step: int
    ) -> list[Batch]:
        """This rank's part of one step: a batch for each group."""
        known = tuple(self.group(rows) for rows in groups)
        batches = []
        for number, rows in enumerate(groups):
            mine = np.arange(rank, len(rows), ranks)
            batches.append(self.batch(rows[mine], pad_id=pad_id, groups=known, group=number, mine=mine, seed=seed, step=step))
        return batches


def _mapped(file: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def _flat(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no rows at all
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    return array.values.to_numpy(), array.offsets.to_numpy().astype(np.int64)
