import numpy as np
import pytest

from raydist.kernels.compiled import compiled
from raydist.kernels.dot_products import dot_loops, dot_numpy


@pytest.mark.parametrize("units", [5, 8, 13, 384])
def test_compiled_and_plain_sums_have_the_same_bits(units):
    rng = np.random.default_rng(units)
    vectors = rng.standard_normal((50, units), dtype=np.float32)
    queries = rng.standard_normal((4, units), dtype=np.float32)
    rows = rng.integers(90, 160, size=(4, 30))  # some of them in other shards, which hold other rows
    rows[:, -1] = -1
    loops = compiled(dot_loops)
    assert loops is not None
    found = []
    for dot in (dot_numpy, loops):
        scores = np.full(rows.shape, -np.inf, np.float32)
        dot(vectors, 100, queries, rows, scores, 0, 3)
        dot(vectors, 100, queries, rows, scores, 3, 4)
        found.append(scores)
    np.testing.assert_array_equal(*found)
    here = (rows >= 100) & (rows < 150)
    exact = np.einsum("qd,qkd->qk", queries.astype(float), vectors[np.where(here, rows - 100, 0)].astype(float))
    np.testing.assert_array_equal(np.isfinite(found[0]), here)
    np.testing.assert_allclose(found[0][here], exact[here], rtol=1e-6, atol=1e-6)
