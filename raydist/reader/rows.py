"""Windows by row number from memory-mapped Arrow files, and batches of them.

Memory: a few numbers per row are read into arrays (about 80 bytes a row); tokens stay on disk, mapped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from raydist.files.mapped import MappedRows, pad_tokens
from raydist.objectives.base import Batch, GroupRows


class WindowRows(MappedRows):
    """All windows of a data set (reader/features.py) as one sequence of rows."""

    def __init__(self, files: Sequence[Path], sets: Sequence[Path] = ()) -> None:
        """`sets` are the n-best sets of hard learning (reader/nbest_sets.py), file for file, row for row."""
        super().__init__(files)
        self.sets = MappedRows(sets) if sets else None
        examples = [json.loads(table.schema.metadata[b"raydist"])["examples"] for table in self.tables]
        self.first_example = np.concatenate([[0], np.cumsum(examples)]).astype(np.int64)

    @cached_property
    def examples(self) -> np.ndarray:
        """The example of each row: its number over all parts."""
        parts = [table["example"].to_numpy() + first for table, first in zip(self.tables, self.first_example)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @cached_property
    def _numbers(self) -> dict[str, np.ndarray]:
        names = ("passage", "answer", "cls", "question_start", "question_end", "passage_start", "passage_end", "start", "end")
        return {name: self.column(name).astype(np.int64) for name in names} | {
            "has_answer": self.column("has_answer").astype(bool)
        }

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return self.list_lengths("input_ids")

    def offsets(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Characters of some rows' passage tokens: all starts, all ends, and the virtual position of each row's token 0."""
        starts = [self.values("char_start", row) for row in rows]
        ends = [self.values("char_end", row) for row in rows]
        before = np.concatenate([[0], np.cumsum([len(part) for part in starts])])[:-1]
        first = self._numbers["passage_start"][rows]
        return np.concatenate(starts), np.concatenate(ends), before - first

    def group(self, rows: np.ndarray) -> GroupRows:
        """The facts about some rows that every rank holds."""
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
        tokens, kinds = ([self.values(name, row) for row in rows] for name in ("input_ids", "token_types"))
        ids, real, types = pad_tokens(tokens, kinds, pad_id)
        position = np.arange(ids.shape[1])
        number = {name: values[rows] for name, values in self._numbers.items()}

        def between(start: str, end: str) -> torch.Tensor:
            return torch.from_numpy((position >= number[start][:, None]) & (position < number[end][:, None]))

        return Batch(
            input_ids_BT=torch.from_numpy(ids),
            attention_BT=torch.from_numpy(real),
            question_BT=between("question_start", "question_end"),
            passage_BT=between("passage_start", "passage_end"),
            start_B=torch.from_numpy(number["start"]),
            end_B=torch.from_numpy(number["end"]),
            has_answer_B=torch.from_numpy(number["has_answer"]),
            token_types_BT=None if types is None else torch.from_numpy(types),
            groups=groups or (self.group(rows),),
            group=group,
            mine=torch.arange(len(rows)) if mine is None else torch.from_numpy(mine),
            seed=seed,
            step=step,
            extras={"cls_B": torch.from_numpy(number["cls"])} | (self._nbest(rows) if self.sets else {}),
        )

    def _nbest(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """The n-best sets of some rows, padded to the longest."""
        assert self.sets is not None
        lists = {name: [self.sets.values(f"nbest_{name}", row) for row in rows] for name in ("start", "end", "type")}
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
        assert self.sets is not None
        return self.sets.column("nbest_gold").astype(np.int64)
