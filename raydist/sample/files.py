"""Plain UTF-8 files, the same bytes on every machine."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

to_json = json.JSONEncoder(ensure_ascii=False).encode


@contextmanager
def open_for_writing(path: Path) -> Iterator[IO[str]]:
    """A new text file, its folder made if missing. It is synced on success, so a full disk is detected by then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_line(file: IO[str], row: dict[str, Any]) -> None:
    """Write one row of a JSON Lines file."""
    file.write(to_json(row) + "\n")
