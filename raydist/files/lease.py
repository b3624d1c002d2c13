"""One owner at a time: a lease names the process that holds it, which gives a sign of life every few seconds.

Whoever finds the lease of a dead owner takes it over: on this machine, when there is no such process; elsewhere, after a minute
without a sign of life.

    FOLDER/NAME.lock          on a disk: the owner; its time is the sign of life. It is read, taken and released under the
                              operating system's lock on FOLDER/.guard; a disk without such locks is read again after a while.
    FOLDER/NAME.lock/TOKEN    in an object store, which has no such lock: each candidate puts its claim, then lists all claims.
                              The earliest live one holds the lease; TOKEN.beat is its sign of life.

The claims need a store that lists what was put (S3 and its like do). A claim is never written again, so its time keeps its
place. Claims of the same second both withdraw and come back after different pauses. `settle` is the time between putting a
claim and trusting it: it covers clocks of one store that differ by a second.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from raydist.errors import InputError
from raydist.files.storage import Storage, writing_to

GUARD = ".guard"
BEAT_SECONDS, DEAD_SECONDS = 5.0, 60.0
STORE_BEAT_SECONDS = 15.0
SETTLE_SECONDS = 2.0
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of flock, on some network disks
ASK_SECONDS = 0.2  # between two attempts of a waiting candidate


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease."""

    host: str
    space: str  # in which its process id counts: a container has its own
    process: int
    started: float  # when the process began, since process ids are reused
    since: float
    command: str
    token: str

    @classmethod
    def me(cls) -> Owner:
        number = os.getpid()
        return cls(socket.gethostname(), _space(), number, _started(number), time.time(), _command(), uuid.uuid4().hex)

    @classmethod
    def read(cls, text: str | bytes) -> Owner | None:
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def is_alive(self, silent: float) -> bool:
        """Whether it runs, on this machine by its process, else by the seconds since its last sign of life."""
        if (self.host, self.space) != (socket.gethostname(), _space()):
            return silent < DEAD_SECONDS
        return abs(_started(self.process) - self.started) < 1

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.process} on {self.host} (`{self.command}`, since {since})"


def _space() -> str:
    """The start of this host, since hosts may share a name, and the container."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> float:
    """When a process began: on Linux in seconds since boot, by a clock that nobody sets. 0 if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return 0.0 if state in "ZX" else int(fields[18]) / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process).create_time()
    return 0.0


def _command() -> str:
    """The program and its first words; no overrides, since those may hold a password."""
    program = Path(sys.argv[0] or "python")
    name = "raydist" if program.name in ("cli.py", "__main__.py") else program.name
    return " ".join([name, *(word for word in sys.argv[1:3] if not any(sign in word for sign in "=@"))])


class Lease:
    """The right to a folder, for the time of a `with`. A second candidate waits so many seconds, then is refused."""

    def __init__(
        self,
        folder: Storage,
        name: str,
        refusal: Callable[[Owner], str],
        *,
        wait: float = 0.0,
        settle: float = 0.0,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`refusal`: the message about another owner. `lost`: called when another owner took over, as from a dead one."""
        self.refusal, self.wait, self.lost, self.owner = refusal, wait, lost, Owner.me()
        self._ground = _ground(folder, name, settle)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        until = time.monotonic() + self.wait
        while other := self.take():
            if time.monotonic() >= until:
                raise InputError(self.refusal(other))
            time.sleep(ASK_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release a lease that was taken."""
        self._ended.set()
        self._beating.join()
        with contextlib.suppress(OSError):  # nobody waits for longer than a minute for a file that could not be deleted
            self._ground.release(self.owner)

    def take(self) -> Owner | None:
        """Take the lease, or return its live owner."""
        other = self._ground.take(self.owner)
        if other is None:
            self._beating = threading.Thread(target=self._beat, name="lease", daemon=True)
            self._beating.start()
        return other

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Guard a commit: on a disk nobody can take over the lease meanwhile. Yields whether it is still ours."""
        with self._ground.guarded():
            yield self.is_mine()

    def is_mine(self) -> bool:
        return self._ground.read(self.owner) == self.owner

    def _beat(self) -> None:
        while not self._ended.wait(self._ground.beat_seconds()):
            with contextlib.suppress(OSError):
                if not self._ground.beat(self.owner):
                    self.lost()
                    return


def owner_of(folder: Storage, name: str) -> Owner | None:
    """The live owner of a lease."""
    return _ground(folder, name, 0.0).live()


def _ground(folder: Storage, name: str, settle: float) -> _Ground:
    return _Disk(folder, name) if folder.is_local else _Store(folder, name, settle)


class _Ground(Protocol):
    """Where owners are recorded."""

    def take(self, owner: Owner) -> Owner | None: ...

    def live(self) -> Owner | None: ...

    def read(self, owner: Owner) -> Owner | None:
        """The recorded owner; in a store, the claim of this one."""
        ...

    def beat(self, owner: Owner) -> bool:
        """Give a sign of life; False if the lease is another's."""
        ...

    def release(self, owner: Owner) -> None: ...

    def guarded(self) -> contextlib.AbstractContextManager[Any]:
        """For a commit."""
        ...

    def beat_seconds(self) -> float: ...


class _Disk:
    def __init__(self, folder: Storage, name: str) -> None:
        self.folder, self.file = Path(folder.path()), Path(folder.path(f"{name}.lock"))

    def take(self, owner: Owner) -> Owner | None:
        with writing_to(self.file):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked() as is_locked:
                if other := self._live(now=self._now()):
                    return other
                beside = self.file.with_name(f".{self.file.name}.{owner.token}.tmp")
                beside.write_text(json.dumps(asdict(owner)) + "\n")
                beside.replace(self.file)
            if not is_locked:  # of several that wrote, the last one holds it
                time.sleep(SETTLE_SECONDS)
                if (written := self.read()) != owner:
                    return written or self.take(owner)
        return None

    def live(self) -> Owner | None:
        return self._live(time.time())

    def _live(self, now: float) -> Owner | None:
        with contextlib.suppress(FileNotFoundError):
            silent = now - self.file.stat().st_mtime
            owner = self.read()
            return owner if owner and owner.is_alive(silent) else None
        return None

    def _now(self) -> float:
        """By the clock of the disk, which may be another machine's."""
        os.utime(self.folder / GUARD)
        return (self.folder / GUARD).stat().st_mtime

    def read(self, owner: Owner | None = None) -> Owner | None:
        try:
            return Owner.read(self.file.read_text())
        except FileNotFoundError:
            return None

    def beat(self, owner: Owner) -> bool:
        with self.guarded():
            if is_mine := self.read() == owner:
                os.utime(self.file)
        return is_mine

    def release(self, owner: Owner) -> None:
        with self.guarded():
            if self.read() == owner:
                self.file.unlink()

    def guarded(self) -> contextlib.AbstractContextManager[Any]:
        return self._locked()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Under the operating system's lock; yields whether this disk has locks."""
        with (self.folder / GUARD).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                yield False
            else:
                yield True

    def beat_seconds(self) -> float:
        return BEAT_SECONDS


class _Store:
    def __init__(self, folder: Storage, name: str, settle: float) -> None:
        self.claims, self.settle = folder.at(f"{name}.lock"), settle

    def take(self, owner: Owner) -> Owner | None:
        while True:
            self.claims.write_bytes(owner.token, json.dumps(asdict(owner)).encode())
            try:
                others, is_tie = self._earlier(owner)
                if not others and self.settle:
                    time.sleep(self.settle)
                    others, is_tie = self._earlier(owner)
            except BaseException:
                self.release(owner)
                raise
            if not others:
                return None
            self.release(owner)
            if not is_tie:
                return others[0]
            time.sleep(random.uniform(0.2, 2.0))

    def _earlier(self, owner: Owner) -> tuple[list[Owner], bool]:
        """The live claims that go before an owner's, earliest first; and whether all of them are of the same second."""
        times = self._times()
        mine, now = int(times[owner.token]), max(times.values())  # by the clock of the store
        others: dict[str, Owner] = {}
        for token in _tokens(times):
            if token != owner.token and int(times[token]) <= mine:
                if other := self._live(token, times, now):
                    others[token] = other
                else:
                    self._delete(token)
        return list(others.values()), all(int(times[token]) == mine for token in others)

    def live(self) -> Owner | None:
        times = self._times()
        return next((owner for token in _tokens(times) if (owner := self._live(token, times, time.time()))), None)

    def _times(self) -> dict[str, float]:
        return {name: (info.mtime_ns or 0) / 1e9 for name, info in self.claims.files().items()}

    def _live(self, token: str, times: dict[str, float], now: float) -> Owner | None:
        """The live owner of a claim."""
        owner = self._read(token)
        return owner if owner and owner.is_alive(now - max(times[token], times.get(f"{token}.beat", 0.0))) else None

    def _read(self, token: str) -> Owner | None:
        try:
            return Owner.read(self.claims.read_bytes(token))
        except FileNotFoundError:
            return None

    def read(self, owner: Owner) -> Owner | None:
        return self._read(owner.token)

    def beat(self, owner: Owner) -> bool:
        if is_mine := self._read(owner.token) == owner:
            self.claims.write_bytes(f"{owner.token}.beat", b"")
        return is_mine

    def release(self, owner: Owner) -> None:
        self._delete(owner.token)

    def _delete(self, token: str) -> None:
        for name in (f"{token}.beat", token):
            self.claims.delete(name)

    def guarded(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def beat_seconds(self) -> float:
        return STORE_BEAT_SECONDS


def _tokens(times: dict[str, float]) -> list[str]:
    """The claims, earliest first."""
    return sorted((name for name in times if not name.endswith(".beat")), key=lambda name: (times[name], name))
