import pytest
import torch

from raydist.kernels.first_k import first_k


@pytest.mark.parametrize("k", [1, 7, 40, 60])
def test_the_first_k_are_those_of_a_stable_sort(k):
    """Many equal scores, some of them below zero, some without bound."""
    scores = torch.randint(-4, 5, (20, 40), generator=torch.Generator().manual_seed(0)).float() / 2
    scores[0] = float("-inf")
    scores[1, 5] = float("inf")
    wanted = [sorted(range(40), key=lambda place, row=row: (-row[place], place))[:k] for row in scores.tolist()]
    assert first_k(scores, k).tolist() == wanted
