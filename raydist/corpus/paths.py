"""Paths and globs -> files."""

from __future__ import annotations

import difflib
import glob
import os
import re
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


def files_of_split(folder: Path, splits: Sequence[str]) -> list[str]:
    """The files of a folder that are named after the first of these splits that has any: train.csv, dev-00000-of-00002.parquet.

    Such folders are written by `to_csv`, `to_json` and `to_parquet`, and are the hub's. Empty where `folder` is none.
    """
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for split in splits:
        named = re.compile(rf"{re.escape(split)}(-\d+-of-\d+)?\.(csv|jsonl?|parquet)(\.gz)?")
        if found := [os.path.join(folder, name) for name in names if named.fullmatch(name)]:
            return found
    return []


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


def with_or_without_gz(path: Path) -> Path:
    """The path, or where there is only a gzipped file, that one's."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.is_file() else path


def check_there(*paths: Path) -> None:
    """Require files to exist, before a long corpus is read."""
    for path in paths:
        check_regular(path)
        if not os.path.isfile(path):
            raise InputError(f"no file {path}; give a file that exists")
