"""Loops over arrays, compiled where numba is installed, and shared among threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

STRIDE = 64  # rows checked together in the selection of the best


def compiled(loops: Callable[..., None]) -> Callable[..., None] | None:
    """A function of loops over arrays, compiled; None where numba is not installed."""
    try:
        from numba import njit
    except ImportError:
        return None
    try:
        return njit(nogil=True, cache=True)(loops)
    except RuntimeError:  # no folder to keep the compiled code in
        return njit(nogil=True)(loops)


def in_threads(pool: ThreadPoolExecutor, threads: int, loops: Callable[..., None], questions: int, *given: Any) -> None:
    """Run the loops over all questions, a share per thread; compiled loops release the GIL."""
    bounds = [questions * at // threads for at in range(threads + 1)]
    list(pool.map(lambda first, last: loops(*given, first, last), bounds, bounds[1:]))
