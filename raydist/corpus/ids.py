"""Ids made from texts, and a compact set of ids, for corpora with too many ids to keep."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np


def passage_id(context: str) -> str:
    """A short name for a passage, equal for equal text up to Unicode composition and blanks."""
    return text_id(" ".join(unicodedata.normalize("NFC", context).split()))


def text_id(text: str) -> str:
    """A short name for a text."""
    return blake2b(text.encode(), digest_size=10).hexdigest()


class KnownIds:
    """A set of ids as 64-bit hashes: eight bytes each, while a set of strings takes more than a hundred.

    Two ids with one hash would be mistaken for each other: with a million ids, in one of 37 million corpora.
    """

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []  # each at least twice as long as the next, so there are few to search

    def add(self, ids: Sequence[str]) -> np.ndarray:
        """Add ids; returns a mask of the new ones, neither known before nor repeated here."""
        hashes = _hashes(ids)
        is_first = np.zeros(len(hashes), bool)
        is_first[np.unique(hashes, return_index=True)[1]] = True
        is_new = is_first & ~self._found(hashes)
        if is_new.any():
            self._sorted.append(np.sort(hashes[is_new]))
        while len(self._sorted) > 1 and len(self._sorted[-2]) < 2 * len(self._sorted[-1]):
            self._sorted[-2:] = [np.sort(np.concatenate(self._sorted[-2:]))]
        return is_new

    def find(self, ids: Sequence[str]) -> np.ndarray:
        """A mask of the known ids."""
        return self._found(_hashes(ids))

    def __len__(self) -> int:
        return sum(map(len, self._sorted))

    def _found(self, hashes: np.ndarray) -> np.ndarray:
        found = np.zeros(len(hashes), bool)
        for known in self._sorted:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            found |= known[at] == hashes
        return found


def _hashes(ids: Sequence[str]) -> np.ndarray:
    digests = b"".join(blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest() for id in ids)
    return np.frombuffer(digests, np.int64)
