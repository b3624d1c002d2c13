import sys
from itertools import pairwise

import numpy as np
import pytest

from raydist.errors import InputError
from raydist.kernels.bm25 import kernel, search_loops, search_numpy
from raydist.kernels.compiled import compiled


def plain(starts, rows, codes, shares, bounds, terms, weights, num_rows, k, allowed=()):
    """The same as a dict of sums: the best rows of each question, ties by row, those without a score left out."""
    found = []
    for first, last in pairwise(bounds):
        scores: dict[int, np.float32] = {}
        for term, weight in zip(terms[first:last], weights[first:last]):
            for at in range(starts[term], starts[term + 1]):
                scores[rows[at]] = scores.get(rows[at], np.float32(0)) + weight * shares[codes[at]]
        found.append(
            sorted(
                ((row, score) for row, score in scores.items() if score and (not len(allowed) or allowed[row])),
                key=lambda hit: (-hit[1], hit[0]),
            )[:k]
        )
    return found


@pytest.mark.parametrize("k", [1, 10, 300])
@pytest.mark.parametrize("share", [None, 0.0, 0.3, 1.0], ids="allowed {}".format)
@pytest.mark.parametrize("search", [search_numpy, search_loops, compiled(search_loops)], ids=["numpy", "loops", "compiled"])
def test_a_search_of_one_shard_is_that_of_plain_sums_bit_for_bit(search, k, share):
    """Shares take few values, so that many rows have the same score."""
    random = np.random.default_rng(k)
    num_rows, num_terms = 150, 12
    of_term = [np.sort(random.choice(num_rows, size, replace=False)) for size in random.integers(0, num_rows, num_terms)]
    starts = np.cumsum([0, *map(len, of_term)])
    rows = np.concatenate(of_term).astype(np.uint32)
    shares = np.array([0.25, 0.5, 0.7], np.float32)
    codes = random.integers(0, 3, len(rows)).astype(np.uint16)
    bounds = np.array([0, 3, 3, 8, 12])
    terms, weights = random.permutation(num_terms), random.choice([0.5, 1.0, 1.3], num_terms).astype(np.float32)
    allowed = np.zeros(0, bool) if share is None else random.random(num_rows) < share
    best, scores = np.full((4, k), -1, np.int64), np.zeros((4, k), np.float32)
    for first, last in ((0, 1), (1, 4)):
        search(starts, rows, codes, shares, bounds, terms, weights, num_rows, allowed, first, last, best, scores)
    found = plain(starts, rows, codes, shares, bounds, terms, weights, num_rows, k, allowed)
    assert any(found) or share == 0
    for question, wanted in enumerate(found):
        assert best[question, : len(wanted)].tolist() == [row for row, _ in wanted]
        assert scores[question, : len(wanted)].tolist() == [score for _, score in wanted]
        assert (best[question, len(wanted) :] == -1).all()


def test_without_numba_there_is_the_plain_search_and_a_wish_for_numba_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    kernel.cache_clear()
    assert kernel("auto") is search_numpy
    with pytest.raises(InputError, match="the numba search needs numba"):
        kernel("numba")
    kernel.cache_clear()
