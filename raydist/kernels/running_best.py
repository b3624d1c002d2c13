"""Running lists of the best products of each question, block by block.

Shapes: Q questions, R rows of a block, K best so far, S strides of a block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from raydist.kernels.compiled import STRIDE


class Best:
    """The best products of each question so far."""

    def __init__(self, questions: int, width: int, device: torch.device) -> None:
        self.scores_QK = torch.full((questions, width), -torch.inf, device=device)
        self.rows_QK = torch.full((questions, width), -1, dtype=torch.int64, device=device)

    def add(self, mine: slice, products_QR: Tensor, first_row: int) -> None:
        """Add products of some of the questions with a block of rows."""
        self.scores_QK[mine], self.rows_QK[mine] = _merge_block(
            self.scores_QK[mine], self.rows_QK[mine], products_QR, first_row
        )

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows, best first."""
        return self.scores_QK.cpu().numpy(), self.rows_QK.cpu().numpy()


def _merge_block(scores_QK: Tensor, rows_QK: Tensor, products_QR: Tensor, first_row: int) -> tuple[Tensor, Tensor]:
    """Merge the best so far with a block's products. Few products beat the worst so far: most strides stay unread."""
    questions, width = scores_QK.shape
    if rows_QK[0, 0] < 0 and products_QR.shape[1] >= width:  # the first block: nothing to beat yet
        best = products_QR.topk(width)
        return best.values, best.indices + first_row
    missing = -products_QR.shape[1] % STRIDE
    if missing:
        products_QR = torch.nn.functional.pad(products_QR, (0, missing), value=-torch.inf)
    strides_QSR = products_QR.view(questions, -1, STRIDE)
    least_Q1 = scores_QK[:, -1:]
    question, stride = (strides_QSR.amax(2) > least_Q1).nonzero(as_tuple=True)
    if not len(question):
        return scores_QK, rows_QK
    looked_at = strides_QSR[question, stride]
    at, place = (looked_at > least_Q1[question]).nonzero(as_tuple=True)
    question, row = question[at], first_row + stride[at] * STRIDE + place
    num_new_Q = torch.bincount(question, minlength=questions)
    column = width + torch.arange(len(question), device=row.device) - (num_new_Q.cumsum(0) - num_new_Q)[question]
    more = int(num_new_Q.max())
    all_scores = torch.nn.functional.pad(scores_QK, (0, more), value=-torch.inf)
    all_rows = torch.nn.functional.pad(rows_QK, (0, more), value=-1)
    all_scores[question, column] = looked_at[at, place]
    all_rows[question, column] = row
    best = all_scores.topk(width)
    return best.values, all_rows.gather(1, best.indices)


class CompiledBest:
    """The same on a CPU with compiled loops: lists have room for twice as many, and a full one drops its worse half.

    Products are compared as integers, made of their bits in the order of the numbers.
    """

    def __init__(self, questions: int, width: int, dtype: torch.dtype, keep: Callable[..., None]) -> None:
        self.width, self.dtype, self.keep = width, dtype, keep
        self.integers = torch.int16 if dtype == torch.bfloat16 else torch.int32
        self.codes = torch.full((questions, 2 * width), torch.iinfo(self.integers).min, dtype=self.integers).numpy()
        self.rows = np.full((questions, 2 * width), -1, np.int64)
        self.filled = np.zeros(questions, np.int64)
        self.least = self.codes[:, 0].copy()  # the bar to exceed

    def add(self, mine: slice, products_QR: Tensor, first_row: int) -> None:
        codes = products_QR.view(self.integers).numpy()
        kept = self.codes[mine], self.rows[mine], self.filled[mine], self.least[mine]
        self.keep(len(codes), codes, first_row, *kept, self.width)

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
        best = torch.from_numpy(self.codes).topk(self.width)
        rows = np.take_along_axis(self.rows, best.indices.numpy(), 1)
        flip = torch.iinfo(self.integers).max
        scores = torch.where(best.values < 0, best.values ^ flip, best.values).view(self.dtype).float().numpy()
        return np.where(rows >= 0, scores, -np.inf), rows


def keep_loops(
    products: np.ndarray,
    first_row: int,
    codes: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    least: np.ndarray,
    width: int,
    first: int,
    last: int,
) -> None:
    """Merge products [Q, R] into the lists of the best ``width`` of the questions from ``first`` to ``last``. When codes[q] is
    full, the best ``width`` stay, and the ``least`` of these is the new bar. To be compiled.
    """
    lowest = np.iinfo(products.dtype).min
    flip = np.iinfo(products.dtype).max  # inverts all bits of a negative number but the sign: larger numbers, larger codes
    for question in range(first, last):
        of = products[question]
        n = filled[question]
        bar = least[question]
        for start in range(0, len(of), STRIDE):
            end = min(start + STRIDE, len(of))
            top = lowest
            for at in range(start, end):
                code = of[at] ^ flip if of[at] < 0 else of[at]
                top = max(top, code)
            if top <= bar:
                continue
            for at in range(start, end):
                code = of[at] ^ flip if of[at] < 0 else of[at]
                if code <= bar:
                    continue
                codes[question, n] = code
                rows[question, n] = first_row + at
                n += 1
                if n < codes.shape[1]:
                    continue
                low, high = 0, n - 1  # move the best to the front, unordered
                while low < high:
                    middle = codes[question, (low + high) // 2]
                    i, j = low, high
                    while i <= j:
                        while codes[question, i] > middle:
                            i += 1
                        while codes[question, j] < middle:
                            j -= 1
                        if i <= j:
                            codes[question, i], codes[question, j] = codes[question, j], codes[question, i]
                            rows[question, i], rows[question, j] = rows[question, j], rows[question, i]
                            i += 1
                            j -= 1
                    if width - 1 <= j:
                        high = j
                    elif width - 1 >= i:
                        low = i
                    else:
                        break
                n = width
                bar = codes[question, width - 1]
        filled[question], least[question] = n, bar
