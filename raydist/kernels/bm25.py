"""BM25's search of one shard: sums over the rows of each term, and the k best of them.

Compiled loops where numba is installed, else numpy; both give the same bits. ``allowed`` is a mask of rows; an empty one allows
all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from raydist.errors import InputError
from raydist.kernels.compiled import STRIDE, compiled

Backend = Literal["auto", "numba", "numpy"]


@lru_cache
def kernel(backend: Backend) -> Callable[..., None]:
    """The search function of a backend: some questions in one shard."""
    if backend == "numpy":
        return search_numpy
    loops = compiled(search_loops)
    if loops is None and backend == "numba":
        raise InputError("the numba search needs numba: pip install numba, or take backend auto or numpy")
    return loops or search_numpy


def search_numpy(
    starts: np.ndarray, rows: np.ndarray, codes: np.ndarray, shares: np.ndarray, bounds: np.ndarray, terms: np.ndarray,
    weights: np.ndarray, num_rows: int, allowed: np.ndarray, first: int, last: int, best_rows: np.ndarray,
    best_scores: np.ndarray,
) -> None:  # fmt: skip
    k = best_rows.shape[1]
    for question in range(first, last):
        scores = np.zeros(num_rows, np.float32)
        for at in range(bounds[question], bounds[question + 1]):
            mine = slice(starts[terms[at]], starts[terms[at] + 1])
            scores[rows[mine]] += weights[at] * shares[codes[mine]]  # a term lists each row at most once
        if len(allowed):
            scores[~allowed] = 0
        found = np.flatnonzero(scores)
        if len(found) > k:
            least = np.partition(scores[found], len(found) - k)[len(found) - k]
            found = found[scores[found] >= least]
        found = found[np.lexsort((found, -scores[found]))][:k]
        best_rows[question, : len(found)] = found
        best_scores[question, : len(found)] = scores[found]


def search_loops(
    starts: np.ndarray, rows: np.ndarray, codes: np.ndarray, shares: np.ndarray, bounds: np.ndarray, terms: np.ndarray,
    weights: np.ndarray, num_rows: int, allowed: np.ndarray, first: int, last: int, best_rows: np.ndarray,
    best_scores: np.ndarray,
) -> None:  # fmt: skip
    # Scores are positive, so as integers their bits have the same order; comparing integers can be vectorised.
    # A candidate is one number, bits of the score above and the complement of the row below: greater is better.
    k = min(best_rows.shape[1], num_rows)
    are_all = len(allowed) == 0
    scores = np.zeros((num_rows + STRIDE - 1) // STRIDE * STRIDE, np.float32)
    bits = scores.view(np.int32)
    heap = np.empty(k, np.int64)
    for question in range(first, last):
        for at in range(bounds[question], bounds[question + 1]):
            weight = weights[at]
            for j in range(starts[terms[at]], starts[terms[at] + 1]):
                scores[rows[j]] += weight * shares[codes[j]]
        size = 0
        least = np.int32(0)
        for block in range(0, len(bits), STRIDE):
            highest = np.int32(0)
            for row in range(block, block + STRIDE):
                highest = max(highest, bits[row])
            if highest > least:
                for row in range(block, block + STRIDE):
                    if bits[row] > least and (are_all or allowed[row]):
                        candidate = (np.int64(bits[row]) << 32) | (0xFFFFFFFF - row)
                        if size < k:  # sift up from the end
                            at_heap = size
                            size += 1
                            while at_heap > 0 and heap[(at_heap - 1) >> 1] > candidate:
                                heap[at_heap] = heap[(at_heap - 1) >> 1]
                                at_heap = (at_heap - 1) >> 1
                        else:  # replace the worst and sift down
                            at_heap = 0
                            while 2 * at_heap + 1 < k:
                                child = 2 * at_heap + 1
                                if child + 1 < k and heap[child + 1] < heap[child]:
                                    child += 1
                                if heap[child] >= candidate:
                                    break
                                heap[at_heap] = heap[child]
                                at_heap = child
                        heap[at_heap] = candidate
                        if size == k:
                            least = np.int32(heap[0] >> 32)
            if highest > 0:
                for row in range(block, block + STRIDE):
                    bits[row] = 0
        ordered = np.sort(heap[:size])
        for rank in range(size):
            candidate = ordered[size - 1 - rank]
            best_rows[question, rank] = 0xFFFFFFFF - (candidate & 0xFFFFFFFF)
            best_scores[question, rank] = np.int32(candidate >> 32).view(np.float32)
