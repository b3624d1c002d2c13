"""How a command ends, whatever ends it."""

import errno
import os
import re
import signal
from pathlib import Path

import pytest

from raydist.errors import InputError
from raydist.exits import guarded, sigterm_as_ctrl_c


def test_a_lost_cluster_is_told_in_two_lines_and_an_error_of_ones_own_with_the_place_of_its_trace(capsys):
    from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, RayTaskError

    def fail_with(error: Exception) -> str:
        def command() -> None:
            raise error

        assert guarded(command) == 1
        return capsys.readouterr().err

    for gone in (ActorUnavailableError("RPC error: Socket closed", b"1" * 16), NodeDiedError("its node is dead")):
        told = fail_with(gone)
        assert told.startswith("failed: Ray lost a process or node that this command needs")
        assert type(gone).__name__ in told
        assert told.endswith("the same command goes on where this one stopped, as soon as the cluster answers again\n")
        assert "Traceback" not in told
    for own in (ActorDiedError(RayTaskError("build", "its trace", KeyError("x"), actor_repr="A")), KeyError("x")):
        told = fail_with(own)
        kept = Path(re.search(r"the whole traceback is in (\S+);", told)[1])
        assert "Traceback" in kept.read_text()
        assert "Traceback" not in told
        assert len(told.splitlines()) == 2
        kept.unlink()


def test_a_bottomless_failure_takes_two_lines_and_the_traceback_is_printed_on_request(capsys, monkeypatch):
    def bottomless(depth: int = 0) -> None:
        bottomless(depth + 1)

    assert guarded(bottomless) == 1
    told = capsys.readouterr().err
    assert told.startswith("failed: RecursionError")
    assert len(told) < 500
    Path(re.search(r"traceback is in (\S+);", told)[1]).unlink()
    monkeypatch.setenv("RAYDIST_TRACEBACK", "1")
    assert guarded(bottomless) == 1
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert "traceback is in" not in told


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "error: /data/x: Permission denied; give a place that"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "n" * 300), "File name too long; give it a shorter name"),
    ],
)
def test_a_place_that_may_not_be_read_is_wrong_input(error, said, capsys):
    def command() -> None:
        raise error

    assert guarded(command) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told) < 400


def test_control_characters_of_names_and_data_are_shown_and_not_obeyed(capsys):
    def command() -> None:
        raise InputError("no file a\x1b[2Jb\x9bc\u202ed\ud800:\n  and a second line")

    assert guarded(command) == 2
    assert capsys.readouterr().err == "error: no file a\\x1b[2Jb\\x9bc\\u202ed\\ud800:\n  and a second line\n"


def test_sigterm_goes_the_way_of_ctrl_c_also_where_something_else_listens_to_that():
    """As asyncio does, which `submit` follows a log with."""
    heard, before = [], signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    at_first = signal.getsignal(signal.SIGTERM)
    try:
        with sigterm_as_ctrl_c() as received:
            os.kill(os.getpid(), signal.SIGTERM)
        assert (heard, received) == ([signal.SIGINT], [signal.SIGTERM])
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with pytest.raises(KeyboardInterrupt), sigterm_as_ctrl_c():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) == at_first
