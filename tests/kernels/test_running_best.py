from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from raydist.kernels.compiled import compiled, in_threads
from raydist.kernels.running_best import Best, CompiledBest, keep_loops


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_compiled_list_of_the_best_is_that_of_a_full_sort(dtype):
    generator = torch.Generator().manual_seed(0)
    products = torch.randn(9, 3000, generator=generator).to(dtype)
    products[3] = products[3].abs().neg()
    products[4] = 0.25
    best = CompiledBest(9, 40, dtype, partial(in_threads, ThreadPoolExecutor(2), 2, compiled(keep_loops)))
    for start, end in ((0, 30), (30, 31), (31, 1500), (1500, 3000)):
        for mine in (slice(0, 4), slice(4, 9)):
            best.add(mine, products[mine, start:end].contiguous(), 100 + start)
    scores, rows = best.in_order()
    np.testing.assert_array_equal(scores, products.float().topk(40).values.numpy())
    np.testing.assert_array_equal(np.take_along_axis(products.float().numpy(), rows - 100, 1), scores)
    assert all(len(set(row)) == 40 for row in rows.tolist())


def test_the_compiled_list_says_where_there_are_fewer():
    best = CompiledBest(2, 5, torch.float32, partial(in_threads, ThreadPoolExecutor(1), 1, compiled(keep_loops)))
    best.add(slice(0, 2), torch.tensor([[1.0, -2.0], [0.5, 3.0]]), 7)
    scores, rows = best.in_order()
    assert rows[:, :2].tolist() == [[7, 8], [8, 7]]
    assert (rows[:, 2:] == -1).all()
    assert np.isneginf(scores[:, 2:]).all()


@pytest.mark.parametrize("width", [1, 40, 3000])
def test_the_list_without_a_compiler_is_that_of_a_full_sort(width):
    products = torch.randn(9, 3000, generator=torch.Generator().manual_seed(1))
    products[3] = products[3].abs().neg()
    best = Best(9, width, torch.device("cpu"))
    for start, end in ((0, 30), (30, 31), (31, 1500), (1500, 3000)):
        for mine in (slice(0, 4), slice(4, 9)):
            best.add(mine, products[mine, start:end], 100 + start)
    scores, rows = best.in_order()
    np.testing.assert_array_equal(scores, products.topk(width).values.numpy())  # which of equal ones is not promised
    np.testing.assert_array_equal(np.take_along_axis(products.numpy(), rows - 100, 1), scores)
    assert all(len(set(row)) == width for row in rows.tolist())
