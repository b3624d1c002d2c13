"""A process on CPUs: its threads, a heap that keeps what it has, and what its processor can do."""

from __future__ import annotations

import ctypes

import torch

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4  # of glibc's mallopt
HEAP_GROWS_BY = 64 << 20
ACTIVATION = 32 << 20  # bytes, the most that glibc takes for this; larger are the tables and vectors of a stage


def use_cores(threads: int, *, keep_all: bool = True) -> None:
    """Set torch's threads, and keep freed memory. glibc gives each large block (every activation) back to the kernel when it is
    freed, and gets it again page by page in the next layer: a tenth of a step's time and more. Without ``keep_all``, for a
    worker that may do other things afterwards, blocks larger than activations without gradients go back.
    """
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # another C library has none, and may not need it
    if mallopt:
        kept = (MMAP_MAX, 0) if keep_all else (MMAP_THRESHOLD, ACTIVATION)
        for parameter, value in (kept, (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, HEAP_GROWS_BY)):
            mallopt(parameter, value)


def bf16_instructions() -> str | None:
    """Which instructions for products in bf16 this processor has."""
    has = torch.cpu.get_capabilities()
    return next((name for name in ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16") if has.get(name)), None)
