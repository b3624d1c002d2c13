"""Exit statuses of commands: 0 done, 2 wrong user input, 1 failed, 130 interrupted, 143 terminated (SIGTERM)."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from raydist.errors import Failure, InputError
from raydist.terminal import complain, escaped

DONE, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
UNREADABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
TRACEBACK = "RAYDIST_TRACEBACK"  # an environment variable: print tracebacks
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray Jobs, whose log outlives the files of their node
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
        complain(f"error: {error}")
        return WRONG_INPUT
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on where this one stopped")
        return INTERRUPTED
    except SystemExit as stop:
        return int(stop.code or DONE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNREADABLE:
            complain(f"error: {_about_place(error)}")
            return WRONG_INPUT
        _explain(error)
        return FAILED
    return DONE


def _explain(error: Exception) -> None:
    """Print one or two lines about a failure."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, Failure):
        complain(f"failed: {error}")
    elif is_lost(error):
        complain(f"failed: Ray lost a process or node that this command needs ({type(error).__name__}: {lines[0]})")
        complain("the same command goes on where this one stopped, as soon as the cluster answers again")
    else:
        _explain_unforeseen(error, lines[-1])


def _about_place(error: OSError) -> str:
    """Where this user may not read or write, and what he can do."""
    seen = f"{str(error.filename)[:200]}: {error.strerror}" if error.filename else str(error).splitlines()[0][:500]
    long = "give it a shorter name" if error.errno == errno.ENAMETOOLONG else "give a place that this user may read and write"
    return f"{seen}; {long}"


def _explain_unforeseen(error: Exception, why: str) -> None:
    """Print what failed and where; the whole traceback goes to a file, unless it is asked for."""
    import traceback

    whole = "".join(traceback.format_exception(error))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(__file__) in frame.filename]
    here = f" ({os.path.relpath(frames[-1].filename, os.path.dirname(__file__))}, line {frames[-1].lineno})" if frames else ""
    if (
        os.environ.get(TRACEBACK)
        or os.environ.get(JOB)
        or {"-v", "--verbose"} & set(sys.argv)
        or (kept := _kept(whole)) is None
    ):
        sys.stderr.write(escaped(whole))
        kept = ""
    complain(f"failed: {type(error).__name__}: {why[:500]}{here}")
    if kept:
        complain(f"the whole traceback is in {kept}; with {TRACEBACK}=1 it is printed instead")


def _kept(text: str) -> str | None:
    """The new file that holds a text; None if none can be written."""
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="raydist-traceback-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError:
        return None
    return file.name


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
