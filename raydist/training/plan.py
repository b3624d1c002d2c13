"""The assignment of rows to batches.

The plan of an epoch is a pure function of (seed, epoch, batch size, lengths), the same for any number of ranks: rank r of n
takes every n-th row of every group. So a resume is exact, and the number of workers may change at any time.
"""

from __future__ import annotations

import numpy as np

LENGTH_POOL = 50  # batches sorted by length together; more means less padding, less random batches


def epoch_plan(lengths: np.ndarray, *, seed: int, epoch: int, batch_size: int, accumulate: int = 1) -> list[list[np.ndarray]]:
    """The global batches of an epoch, each as its groups of row numbers.

    Rows of similar length share a batch; the choice of rows and the order of batches are random. Every row is used exactly
    once: batch sizes differ by one row at most, no row is dropped.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    pool = batch_size * LENGTH_POOL
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    order = np.concatenate([rows[np.argsort(lengths[rows], kind="stable")] for rows in pools]) if pools else order
    count = -(-len(order) // batch_size)
    batches = np.array_split(order, count) if count else []
    batches = [batches[i] for i in random.permutation(len(batches))]
    # within a batch, rows are dealt out by length, so that groups and ranks get similar shares
    return [[rows[part::accumulate] for part in range(accumulate)] for rows in batches]
