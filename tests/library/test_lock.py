"""One writer: others wait or are refused by name, the dead do not stand in the way, the late do no harm."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from raydist.errors import InputError
from raydist.library import lock
from raydist.library.library import Library
from raydist.library.lock import LOCK, Owner, WriterLock
from raydist.library.writer import LibraryWriter

from .conftest import passage_rows, table

OTHER_PROCESS = """
import sys, time
from pathlib import Path
from raydist.library.lock import WriterLock
with WriterLock(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path):
    with WriterLock(tmp_path), pytest.raises(InputError, match=f"being written by process {os.getpid()} on "):
        WriterLock(tmp_path).__enter__()
    with WriterLock(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_second_writer_that_waits_comes_when_the_first_is_done(tmp_path):
    order = []

    def second() -> None:
        with WriterLock(tmp_path, wait=60):
            order.append("second")

    with WriterLock(tmp_path):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.5)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_the_lock_of_a_process_that_was_killed_ends_with_it(tmp_path):
    with subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mine\n"
        with pytest.raises(InputError, match=f"process {other.pid} on "):
            WriterLock(tmp_path).__enter__()
        other.send_signal(signal.SIGKILL)
        other.wait()
    with WriterLock(tmp_path) as mine:
        assert mine.is_mine()


def test_an_owner_elsewhere_is_dead_when_it_was_silent_for_long(tmp_path):
    elsewhere = replace(Owner.me(), host="another.example", token="theirs")
    file = tmp_path / LOCK
    file.write_text(json.dumps(asdict(elsewhere)))
    with pytest.raises(InputError, match=r"on another\.example"):
        WriterLock(tmp_path).__enter__()
    os.utime(file, (time.time() - 2 * lock.DEAD_SECONDS,) * 2)
    with WriterLock(tmp_path) as mine:
        assert mine.is_mine()


def test_an_owner_shows_that_it_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.05)
    with WriterLock(tmp_path):
        os.utime(tmp_path / LOCK, (0, 0))
        until = time.monotonic() + 30
        while (tmp_path / LOCK).stat().st_mtime == 0 and time.monotonic() < until:
            time.sleep(0.02)
        assert (tmp_path / LOCK).stat().st_mtime > 0


def test_a_writer_that_was_taken_for_dead_puts_nothing_in_force(tmp_path):
    with LibraryWriter(tmp_path) as writer:
        writer.add(table(passage_rows("a", 0)))

    def late() -> None:
        with LibraryWriter(tmp_path) as writer:
            writer.delete(["a"])
            theirs = replace(Owner.me(), token="theirs")
            (tmp_path / LOCK).write_text(json.dumps(asdict(theirs)))

    with pytest.raises(InputError, match="another writer took over"):
        late()
    assert (tmp_path / LOCK).exists(), "theirs is theirs"
    assert Library.open(tmp_path).documents == 1
