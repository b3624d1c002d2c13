"""A file of judgements that is written to: whole lines at its end, each on disk before it counts."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydist.errors import InputError
from raydist.files.storage import writing_to
from raydist.judgements.judgement import Judgement, now
from raydist.judgements.reading import Ledger


class Journal:
    """A file of judgements, for any number of threads and processes.

    A last line without its end is what a crash left: it is cut away, and `notes` says so.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._ledger = Ledger()
        self._read = self._lines = 0  # bytes and lines
        self._lock = threading.Lock()
        with writing_to(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open():
            pass

    def add(self, judgement: Judgement) -> None:
        with self._open() as file:
            self._append(file, judgement.line)

    def undo(self, id: str) -> Judgement:
        """Take a judgement back, and return it."""
        with self._open() as file:
            judgement = self._ledger.by_id.get(id)
            if judgement is None:
                raise InputError(f"there is no judgement {id!r} to take back")
            self._append(file, (json.dumps({"undo": id, "time": now()}) + "\n").encode())
            return judgement

    def standing(self) -> list[Judgement]:
        """All judgements that are not taken back, in the order in which they were made."""
        with self._open():
            return list(self._ledger.by_id.values())

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The file, locked, after the lines of other writers have been read."""
        with self._lock, writing_to(self.path):
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._catch_up(file)
                yield file
            finally:
                os.close(file)

    def _catch_up(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size < self._read:
            raise InputError(f"{self.path} has lost lines while it was open: start again")
        content = os.pread(file, size - self._read, self._read) if size > self._read else b""
        *lines, tail = content.split(b"\n")
        if tail:
            self.notes.append(f"{self.path}, line {self._lines + len(lines) + 1}: cut off, and dropped")
            os.ftruncate(file, size - len(tail))
            os.fsync(file)
        for line in lines:
            self._count(line)

    def _count(self, line: bytes) -> None:
        if line.strip():
            try:
                self._ledger.read(line)
            except InputError as error:
                raise InputError(f"{self.path}, line {self._lines + 1}: {error}") from None
        self._read += len(line) + 1
        self._lines += 1

    def _append(self, file: int, line: bytes) -> None:
        before = os.fstat(file).st_size
        try:
            if os.write(file, line) < len(line):
                raise OSError("the line did not fit")
            os.fsync(file)
        except OSError:
            os.ftruncate(file, before)
            raise
        self._count(line[:-1])
