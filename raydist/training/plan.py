"""Which rows make which batch.

The plan of an epoch is a pure function of (seed, epoch, batch size, lengths). It is the same for any number of ranks: rank r of
n takes every n-th row of every group. That makes a resume exact, worker counts interchangeable and resizing harmless.
"""

from __future__ import annotations

import numpy as np

LENGTH_POOL = 50  # batches sorted by length together; more: less padding, less random batches


def epoch_plan(lengths: np.ndarray, *, seed: int, epoch: int, batch_size: int, accumulate: int = 1) -> list[list[np.ndarray]]:
    """The global batches of an epoch, each as its groups of row numbers.

    Rows of like length share a batch; which ones, and the order of the batches, are random. Every row is used exactly once: the
    batches differ by one row at the most, none is dropped.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    pool = batch_size * LENGTH_POOL
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    order = np.concatenate([rows[np.argsort(lengths[rows], kind="stable")] for rows in pools]) if pools else order
    count = -(-len(order) // batch_size)
    batches = np.array_split(order, count) if count else []
    batches = [batches[i] for i in random.permutation(len(batches))]
    # within a batch the rows are dealt out by length, so that groups and ranks get alike shares
    return [[rows[part::accumulate] for part in range(accumulate)] for rows in batches]
