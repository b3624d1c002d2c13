"""A training process on CPUs: its threads, and a heap that keeps what it has."""

from __future__ import annotations

import ctypes

import torch

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # of glibc's mallopt
HEAP_GROWS_BY = 64 << 20


def use_cores(threads: int) -> None:
    """Set torch's threads, and keep freed memory. glibc gives each large block (every activation) back to the kernel when it is
    freed, and gets it again page by page in the next layer: a tenth of a step's time and more.
    """
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # another C library has none, and may not need it
    if mallopt:
        for parameter, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, HEAP_GROWS_BY)):
            mallopt(parameter, value)
