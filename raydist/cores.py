"""CPU settings of a process: threads, a heap that keeps freed memory, and the processor's instructions."""

from __future__ import annotations

import ctypes

import torch

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4  # of glibc's mallopt
HEAP_GROWS_BY = 64 << 20
ACTIVATION = 32 << 20  # bytes, glibc's upper limit; the tables and vectors of a stage are larger


def use_cores(threads: int, *, keep_all: bool = True) -> None:
    """Set torch's threads, and keep freed memory. By default glibc returns each large block (every activation) to the kernel
    when freed, and gets it back page by page in the next layer: a tenth of a step's time and more. Without ``keep_all``, for a
    worker that may do other work afterwards, blocks larger than activations without gradients are returned.
    """
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it, and may not need it
    if mallopt:
        kept = (MMAP_MAX, 0) if keep_all else (MMAP_THRESHOLD, ACTIVATION)
        for parameter, value in (kept, (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, HEAP_GROWS_BY)):
            mallopt(parameter, value)


def bf16_instructions() -> str | None:
    """The processor's instructions for bf16 products, if any."""
    has = torch.cpu.get_capabilities()
    return next((name for name in ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16") if has.get(name)), None)
