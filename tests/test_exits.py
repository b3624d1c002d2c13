"""How a command ends, whatever ends it."""

import os
import signal

import pytest

from raydist.exits import guarded, sigterm_as_ctrl_c


def test_a_lost_cluster_is_told_in_two_lines_and_an_error_of_ones_own_with_its_trace(capsys):
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
        assert "Traceback" in fail_with(own)


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
