"""Final scores of proposed rows: products summed in float64, in a fixed order.

Eight partial sums run side by side, then come the remaining units: an order that a processor can follow eight at a time. So
the compiled loops, their twin in numpy and any processor give the same bits.
"""

from __future__ import annotations

import numpy as np


def dot_numpy(
    vectors: np.ndarray, first_row: int, queries: np.ndarray, rows: np.ndarray, scores: np.ndarray, first: int, last: int
) -> None:
    """Score the rows [Q, K] that are in this shard, for the questions from ``first`` to ``last``."""
    whole = vectors.shape[1] // 8 * 8
    for question in range(first, last):
        here = np.flatnonzero((rows[question] >= first_row) & (rows[question] < first_row + len(vectors)))
        found = vectors[rows[question, here] - first_row].astype(np.float64)
        products = found * queries[question]  # exact: 24 + 24 < 53 bits
        side = np.add.reduce(products[:, :whole].reshape(len(here), -1, 8), axis=1)
        half = (side[:, 0] + side[:, 1]) + (side[:, 2] + side[:, 3])
        other = (side[:, 4] + side[:, 5]) + (side[:, 6] + side[:, 7])
        rest = np.zeros(len(here))
        for unit in range(whole, vectors.shape[1]):
            rest += products[:, unit]
        scores[question, here] = half + other + rest


def dot_loops(
    vectors: np.ndarray, first_row: int, queries: np.ndarray, rows: np.ndarray, scores: np.ndarray, first: int, last: int
) -> None:
    """The same as loops, to be compiled."""
    units = vectors.shape[1]
    whole = units // 8 * 8
    query = np.empty(units, np.float64)
    for question in range(first, last):
        for unit in range(units):
            query[unit] = queries[question, unit]
        for k in range(rows.shape[1]):
            row = rows[question, k] - first_row
            if row < 0 or row >= vectors.shape[0]:
                continue
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
            for d in range(0, whole, 8):
                s0 += vectors[row, d] * query[d]
                s1 += vectors[row, d + 1] * query[d + 1]
                s2 += vectors[row, d + 2] * query[d + 2]
                s3 += vectors[row, d + 3] * query[d + 3]
                s4 += vectors[row, d + 4] * query[d + 4]
                s5 += vectors[row, d + 5] * query[d + 5]
                s6 += vectors[row, d + 6] * query[d + 6]
                s7 += vectors[row, d + 7] * query[d + 7]
            rest = 0.0
            for d in range(whole, units):
                rest += vectors[row, d] * query[d]
            scores[question, k] = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)) + rest
