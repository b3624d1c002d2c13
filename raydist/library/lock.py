"""One writer at a time: a lock file names its owner, which touches it every few seconds as a sign of life.

A writer takes over the file of a dead owner (on this machine: no such process; on another: no sign of life for a minute).
The lock is read, taken and released under the operating system's lock on the file GUARD, so that of two writers that see the
same dead owner one comes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

from raydist.errors import InputError

LOCK, GUARD = "writer.lock", ".writer.guard"
BEAT_SECONDS, DEAD_SECONDS = 5.0, 60.0
ASK_SECONDS = 0.2  # between two attempts of a waiting writer


@dataclass(frozen=True)
class Owner:
    """The process of a writer."""

    host: str
    process: int
    started: float  # when the process began, since process ids are reused
    since: float
    token: str

    @classmethod
    def me(cls) -> Owner:
        process = psutil.Process()
        return cls(socket.gethostname(), process.pid, process.create_time(), time.time(), uuid.uuid4().hex)

    def is_alive(self, silent: float) -> bool:
        """Whether it runs, on this machine by its process, else by the seconds since its last sign of life."""
        if self.host != socket.gethostname():
            return silent < DEAD_SECONDS
        try:
            return abs(psutil.Process(self.process).create_time() - self.started) < 1
        except psutil.Error:
            return False


class WriterLock:
    """The right to write to a folder, for the time of a `with`. A second writer waits so many seconds, then is refused."""

    def __init__(self, folder: Path, wait: float = 0.0) -> None:
        self.folder, self.wait, self.owner = folder, wait, Owner.me()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + self.wait
        while other := self._taken():
            if time.monotonic() >= until:
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(other.since))
                raise InputError(
                    f"{self.folder} is being written by process {other.process} on {other.host} (since {since}): run this "
                    f"again when that is done; readers are not disturbed"
                )
            time.sleep(ASK_SECONDS)
        self._beating = threading.Thread(target=self._beat, name="writer lock", daemon=True)
        self._beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beating.join()
        with self._guarded():
            if self.is_mine():
                self._file.unlink()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Guard a commit: no other writer can take over the lock meanwhile. Refused if one already has."""
        with self._guarded():
            if not self.is_mine():
                raise InputError(
                    f"{self.folder}: another writer took over, because this one had shown no sign of life; run this again"
                )
            yield

    def is_mine(self) -> bool:
        return self._read() == self.owner

    @property
    def _file(self) -> Path:
        return self.folder / LOCK

    def _taken(self) -> Owner | None:
        """Take the lock, or return its live owner."""
        with self._guarded():
            other = self._read()
            if other and other.is_alive(time.time() - self._file.stat().st_mtime):
                return other
            beside = self._file.with_name(f".{LOCK}.{self.owner.token}.tmp")
            beside.write_text(json.dumps(asdict(self.owner)) + "\n")
            beside.replace(self._file)
            return None

    def _read(self) -> Owner | None:
        try:
            return Owner(**json.loads(self._file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        with (self.folder / GUARD).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError), self._guarded():
                if self.is_mine():
                    os.utime(self._file)
