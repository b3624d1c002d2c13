"""The terms of a BM25 index, or of one of its shards."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.files.shards import load_array, load_strings, string_arrays, string_parts


class Vocabulary:
    """Sorted terms on disk. A look-up is a binary search by the first eight bytes, then by the whole term."""

    def __init__(self, folder: Path) -> None:
        self.terms = load_strings(folder, "terms")
        self.heads = load_array(folder, "heads")

    def __len__(self) -> int:
        return len(self.terms)

    @staticmethod
    def arrays(terms: pa.Array) -> dict[str, np.ndarray]:
        """The arrays of a vocabulary folder, for terms that are sorted already."""
        return {**string_arrays("terms", terms), "heads": _heads(terms)}

    def find(self, terms: Sequence[str]) -> np.ndarray:
        """The number of each term, -1 if absent."""
        asked = pa.array(terms, pa.large_string())
        heads = _heads(asked)
        first, last = np.searchsorted(self.heads, heads), np.searchsorted(self.heads, heads, side="right")
        found = np.full(len(terms), -1, np.int64)
        same_head = np.flatnonzero(first < last)
        is_it = pc.equal(self.terms.take(pa.array(first[same_head])), asked.take(pa.array(same_head)))
        is_it = is_it.to_numpy(zero_copy_only=False)
        found[same_head[is_it]] = first[same_head[is_it]]
        for place in same_head[~is_it].tolist():  # longer than eight bytes, and not the first with that head
            at = bisect_left(range(last[place]), terms[place], lo=first[place], key=lambda i: self.terms[i].as_py())
            if at < last[place] and self.terms[at].as_py() == terms[place]:
                found[place] = at
        return found


def _heads(strings: pa.Array) -> np.ndarray:
    """The first eight bytes of each string as one number, in the same order."""
    offsets, text = string_parts(strings)
    padded = np.append(text, np.zeros(8, np.uint8))
    lengths = np.diff(offsets)
    heads = np.zeros(len(strings), np.uint64)
    for place in range(8):
        heads = (heads << np.uint64(8)) | np.where(lengths > place, padded[offsets[:-1] + place], 0).astype(np.uint64)
    return heads
