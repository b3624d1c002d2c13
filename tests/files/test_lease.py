"""One owner: others wait or are refused by name, the dead do not stand in the way, the late learn of it."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace

import pytest

from raydist.errors import InputError
from raydist.files import lease
from raydist.files.lease import Lease, Owner, owner_of
from raydist.files.storage import Storage

OTHER_PROCESS = """
import sys, time
from raydist.files.lease import Lease
from raydist.files.storage import Storage
with Lease(Storage(sys.argv[1]), "write", str):
    print("mine", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path) -> Storage:
    if request.param == "disk":
        return Storage(str(tmp_path))
    return Storage(request.getfixturevalue("s3").uri("runs"))


def new_lease(folder: Storage, **settings) -> Lease:
    return Lease(folder, "write", lambda other: f"held by {other}", **settings)


def put_owner(folder: Storage, owner: Owner) -> str:
    """Another process's lease; returns the name of its file."""
    name = "write.lock" if folder.is_local else f"write.lock/{owner.token}"
    folder.write_bytes(name, json.dumps(asdict(owner)).encode())
    return name


def age(request, folder: Storage, name: str, seconds: float) -> None:
    """Let a file be so old."""
    if folder.is_local:
        os.utime(folder.path(name), (time.time() - seconds,) * 2)
    else:
        request.getfixturevalue("s3").objects[f"runs/{name}"].modified -= seconds


def test_a_second_candidate_is_refused_with_the_name_of_the_first(folder):
    with new_lease(folder):
        with pytest.raises(InputError, match=f"held by process {os.getpid()} on .*since 20"):
            new_lease(folder).__enter__()
        assert owner_of(folder, "write").process == os.getpid()
    assert owner_of(folder, "write") is None
    with new_lease(folder):
        pass
    assert not folder.sizes() or set(folder.sizes()) == {lease.GUARD}
    assert not folder.sizes("write.lock")


def test_on_a_disk_without_locks_the_last_of_those_that_wrote_holds_the_lease(tmp_path, monkeypatch):
    def refuse(*_) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(lease.fcntl, "flock", refuse)
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.5)
    folder, owners = Storage(str(tmp_path)), []
    both = [new_lease(folder) for _ in range(2)]
    threads = [threading.Thread(target=lambda one=one: owners.append(one.take())) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert owners.count(None) == 1, "one holds it, the other is told"
    for one in both:
        if one.is_mine():
            one.close()
    assert owner_of(folder, "write") is None


def test_a_second_candidate_that_waits_comes_when_the_first_is_done(folder):
    order = []

    def second() -> None:
        with new_lease(folder, wait=60):
            order.append("second")

    with new_lease(folder):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.5)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_of_many_candidates_at_once_one_holds_the_lease_at_a_time(folder):
    inside, most = [], []

    def candidate() -> None:
        with new_lease(folder, wait=60):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.05)
            inside.pop()

    threads = [threading.Thread(target=candidate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_two_claims_of_the_same_second_are_not_both_trusted(s3):
    folder = Storage(s3.uri("runs"))
    ours, order = new_lease(folder), []
    put = ours._ground.claims.write_bytes

    def put_beside_another(name: str, content: bytes) -> None:
        """Another process lists before this claim is there, and puts its own a moment later."""
        if not order:
            order.append(put_owner(folder, replace(ours.owner, token="0", host="another.example")))
        put(name, content)
        if theirs := s3.objects.get("runs/write.lock/0"):
            s3.objects[f"runs/write.lock/{name}"].modified = theirs.modified

    ours._ground.claims.__dict__["write_bytes"] = put_beside_another
    withdraw = threading.Timer(1.0, lambda: folder.delete("write.lock/0"))
    withdraw.start()
    assert ours.take() is None
    withdraw.join()
    puts = [line for line in s3.requests if line.startswith(f"PUT runs/write.lock/{ours.owner.token}")]
    assert len(puts) > 1, "it withdrew, and came back"
    ours.__exit__()


def test_a_claim_that_settles_sees_an_earlier_one_by_another_clock_of_the_store(s3):
    folder = Storage(s3.uri("runs"))
    theirs = replace(Owner.me(), token="theirs")

    def put() -> None:
        s3.objects[f"runs/{put_owner(folder, theirs)}"].modified -= 2

    late = threading.Timer(0.2, put)
    late.start()
    assert new_lease(folder, settle=1.0).take() == theirs
    late.join()


def test_the_lease_of_a_process_that_was_killed_ends_with_it(folder):
    with subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, folder.uri], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mine\n"
        with pytest.raises(InputError, match=f"process {other.pid} on "):
            new_lease(folder).__enter__()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert owner_of(folder, "write") is None
    with new_lease(folder) as mine:
        assert mine.is_mine()


def test_a_process_that_took_the_id_of_a_dead_one_does_not_own_its_lease(folder):
    put_owner(folder, replace(Owner.me(), started=Owner.me().started - 5, token="old"))
    with new_lease(folder) as mine:
        assert mine.is_mine()


@pytest.mark.parametrize("elsewhere", [{"host": "another.example"}, {"space": "pid:[1]"}])
def test_an_owner_elsewhere_is_dead_when_it_was_silent_for_long(request, folder, elsewhere):
    """In another container, too: a process id means nothing there."""
    other = replace(Owner.me(), process=1, token="theirs", **elsewhere)
    name = put_owner(folder, other)
    age(request, folder, name, 1.5)
    with pytest.raises(InputError, match="held by process 1 on"):
        new_lease(folder).__enter__()
    age(request, folder, name, 2 * lease.DEAD_SECONDS)
    with new_lease(folder) as mine:
        assert mine.is_mine()


def test_an_owner_shows_that_it_lives(request, folder, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "STORE_BEAT_SECONDS", 0.05)
    with new_lease(folder) as mine:
        name = "write.lock" if folder.is_local else f"write.lock/{mine.owner.token}"
        age(request, folder, name, 2 * lease.DEAD_SECONDS)
        until = time.monotonic() + 30
        while folder.newest("" if folder.is_local else "write.lock") < time.time() - 60 and time.monotonic() < until:
            time.sleep(0.02)
        elsewhere = replace(mine.owner, host="another.example")
        folder.write_bytes(name, json.dumps(asdict(elsewhere)).encode())
        assert owner_of(folder, "write") == elsewhere


def test_an_owner_learns_that_another_took_over(folder, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "STORE_BEAT_SECONDS", 0.05)
    lost = threading.Event()
    with ExitStack() as stack:
        mine = stack.enter_context(new_lease(folder, lost=lost.set))
        with mine.held() as is_mine:
            assert is_mine
        folder.delete("write.lock")
        theirs = put_owner(folder, replace(Owner.me(), token="theirs"))
        assert lost.wait(30)
        with mine.held() as is_mine:
            assert not is_mine
    assert folder.exists(theirs), "theirs is theirs"


def test_a_command_is_named_without_its_settings(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/raydist", "run", "quickstart", "storage=s3://key:secret@bucket/runs"])
    assert Owner.me().command == "raydist run quickstart"
    monkeypatch.setattr(sys, "argv", ["/raydist/cli.py", "index", "s3://key:secret@bucket/docs"])
    assert Owner.me().command == "raydist index"
