"""Plain UTF-8 files, the same bytes on every machine."""

import json
from pathlib import Path
from typing import IO, Any

to_json = json.JSONEncoder(ensure_ascii=False).encode


def open_for_writing(path: Path) -> IO[str]:
    """A new text file; its folder is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "w", encoding="utf-8", newline="\n")


def write_line(file: IO[str], row: dict[str, Any]) -> None:
    """One row of a JSON Lines file."""
    file.write(to_json(row) + "\n")
