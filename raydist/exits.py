"""Exit statuses of commands: 0 done, 2 wrong user input, 1 failed, 130 interrupted, 143 terminated (SIGTERM)."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from raydist.errors import Failure, InputError

DONE, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
LOST = {"RayActorError", "LocalRayletDiedError", "NodeDiedError", "ObjectLostError", "RpcError", "WorkerCrashedError"}


def exit_status(command: Callable[[], object]) -> int:
    """Call a command and return its exit status. SIGTERM ends it like Ctrl-C."""
    with sigterm_as_ctrl_c() as received:
        status = guarded(command)
    return TERMINATED if status == INTERRUPTED and received else status


def guarded(command: Callable[[], object]) -> int:
    """Call a command; turn an error into one message and an exit status."""
    try:
        command()
    except InputError as error:
        _print_error(f"error: {error}")
        return WRONG_INPUT
    except KeyboardInterrupt:
        _print_error("interrupted; the same command goes on where this one stopped")
        return INTERRUPTED
    except SystemExit as stop:
        return int(stop.code or DONE)
    except Exception as error:
        _explain(error)
        return FAILED
    return DONE


def _explain(error: Exception) -> None:
    """Print one or two lines about a failure, below a traceback if it was unforeseen."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, Failure):
        _print_error(f"failed: {error}")
    elif is_lost(error):
        _print_error(f"failed: Ray lost a process or node that this command needs ({type(error).__name__}: {lines[0]})")
        _print_error("the same command goes on where this one stopped, as soon as the cluster answers again")
    else:
        import traceback

        traceback.print_exc()
        _print_error(f"failed: {type(error).__name__}: {lines[-1]}")


def _print_error(text: str) -> None:
    print(text, file=sys.stderr)


def is_lost(error: Exception) -> bool:
    """Whether Ray reports a loss. Compares class names, since many commands do not load Ray; an actor that failed with its own
    error is not lost.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "ray.exceptions"}
    return bool(kinds & LOST) and "creation task" not in str(error)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Treat SIGTERM, sent by Kubernetes, Slurm and `raydist jobs stop`, like Ctrl-C; yields the received signals."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        at_ctrl_c = signal.getsignal(signal.SIGINT)  # asyncio's handler, if it runs
        if not callable(at_ctrl_c):
            raise KeyboardInterrupt
        at_ctrl_c(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)
