"""What users give: paths, files and JSON. What has no end or no bottom is refused in one short message."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydist.errors import InputError

_KINDS: list[tuple[Callable[[int], bool], str]] = [
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
]


# --- paths -----------------------------------------------------------------------------------------------------------


def expanded(path: str | Path) -> Path:
    """A path with its ~ replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        name = Path(path).parts[0]
        why = f"there is no user {name[1:]}" if name != "~" else "this user has no home folder: HOME is not set"
        raise InputError(f"{path}: {why}; give the full path") from None


def home_cache() -> Path:
    """The folder of copies and built-in models on this machine: RAYDIST_CACHE, else in the home folder."""
    stated = os.environ.get("RAYDIST_CACHE")
    return Path(stated) if stated else expanded("~/.cache/raydist")


def check_regular(path: str | Path) -> None:
    """Refuse pipes, devices and sockets, which may never end, and which no worker could read again."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # reported by whoever opens it
    for is_such, kind in _KINDS:
        if is_such(mode):
            raise InputError(f"{path} is {kind}, and a regular file is wanted: save its content in one")


# --- JSON ------------------------------------------------------------------------------------------------------------


def parse_json(text: str | bytes, **options: Any) -> Any:
    """`json.loads`, whose only error is a ValueError with a short message."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("too many lists or objects within each other") from None
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise ValueError(about_digits(error)) from None


def about_digits(error: ValueError) -> str:
    """The message, without Python's advice to its programmers."""
    return "an integer with thousands of digits" if "int_max_str_digits" in str(error) else str(error)
