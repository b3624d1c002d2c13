"""Paths and globs -> files."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Sequence
from pathlib import Path

from raydist.corpus.messages import some
from raydist.errors import InputError
from raydist.files.given import check_regular, expanded


def expand_paths(patterns: Sequence[str]) -> list[str]:
    """The files of paths and globs, sorted, each once."""
    found: set[str] = set()
    for pattern in patterns:
        path = str(expanded(pattern))
        if os.path.isdir(path):
            names = sorted(os.listdir(path))
            raise InputError(f"{pattern} is a directory ({some(names)}); wanted files: give {pattern.rstrip('/')}/* or names")
        check_regular(path)
        if os.path.exists(path):  # including names that contain [ or *
            found.add(os.path.normpath(path))
            continue
        files = [match for match in glob.glob(path, recursive=True) if os.path.isfile(match)] if glob.has_magic(path) else []
        if not files:
            raise InputError(_nothing_at(pattern, path))
        found.update(map(os.path.normpath, files))
    return sorted(found)


def _nothing_at(pattern: str, path: str) -> str:
    pattern = pattern if len(pattern) <= 300 else f"{pattern[:300]}..."
    if "://" in pattern:
        return f"{pattern} is a remote address; wanted local files: copy or mount it, or load it by its hub name"
    folder, name = os.path.split(path)
    if glob.has_magic(folder) or not os.path.isdir(folder or "."):
        return f"no file at {pattern}: there is no folder {folder[:300]}; check the path"
    names = sorted(os.listdir(folder or "."))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
    what = "no file matches" if glob.has_magic(path) else "no file at"
    return f"{what} {pattern}; {'nearest there' if close else 'the folder holds'}: {some(close or names)}"


def check_there(*paths: Path) -> None:
    """Require files to exist, before a long corpus is read."""
    for path in paths:
        check_regular(path)
        if not os.path.isfile(path):
            raise InputError(f"no file {path}; give a file that exists")
