"""Whether two searches found the same: scores at every place, rows where no near tie may be settled in another way."""

from __future__ import annotations

import numpy as np

Found = tuple[np.ndarray, np.ndarray]  # rows and scores, [questions, K], best first


def stands_apart(scores_QK: np.ndarray, *, rtol: float, atol: float) -> np.ndarray:
    """Which places of the lists, best first, are no near ties of the place before or after: both sides may differ in as much as
    the tolerances say. The last may tie with what is not listed, and scores of 0 are no hits.
    """
    gap_QK = scores_QK[:, :-1] - scores_QK[:, 1:]
    is_apart = gap_QK > 2 * (rtol * np.abs(scores_QK[:, :-1]) + atol)
    first = np.ones((len(scores_QK), 1), bool)
    last = np.zeros((len(scores_QK), 1), bool)
    return np.hstack([first, is_apart]) & np.hstack([is_apart, last]) & (scores_QK > 0)


def assert_agreement(ours: Found, theirs: Found, *, rtol: float, atol: float) -> float:
    """An AssertionError where the lists differ; else the share of places whose rows could be compared."""
    np.testing.assert_allclose(ours[1], theirs[1], rtol=rtol, atol=atol)
    apart = stands_apart(theirs[1], rtol=rtol, atol=atol)
    np.testing.assert_array_equal(ours[0][apart], theirs[0][apart])
    return float(apart.mean())
