"""A local Ray: restarts a slow start, reports its death, yields the CPU to training, and dies with its command."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from raydist import orphans
from raydist.errors import Failure, InputError
from raydist.terminal import say

# A local node is never preempted, and the end of a training is noticed sooner.
# Its workers yield to nobody: Ray gives them niceness 15, and one waiting thread holds up all others.
# Idle workers of stages end after five minutes: kept for the next stage, they would last through a long training.
ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # a report waits until the previous one was fetched
    "RAY_worker_niceness": "0",
    "RAY_num_workers_soft_limit": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "300000",
    "RAY_health_check_failure_threshold": "1000",  # this process watches instead; a busy machine is not a dead one
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as on a Mac: the node's address is 127.0.0.1, out of reach of other machines
}
# Processes that train or will train. The rest of Ray is idle meanwhile, but each process wakes up a hundred times a second
# (0.6 % of a core). When training uses all cores, a delayed thread holds up the others at the end of every matrix product.
WORKS = {"RayTrainWorker", "IDLE", "default_worker"}
NEEDED = {"gcs_server", "raylet"}  # without them Ray ends this process, too, within a minute and silently
LOGS = "log_monitor"  # sends what workers print to this process
STARTS = 3


class NotStarted(Failure):
    """No cluster could be started."""


class LocalRay:
    """A cluster owned by this process."""

    def __init__(self, *, hush: bool, **options: Any) -> None:
        self.before = _stay_on_this_machine()
        self.orphans = subprocess.Popen(
            [sys.executable, "-P", orphans.__file__, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
        others = _children()
        try:
            _start(hush, options)
        except BaseException:
            self._forget()
            raise
        self.over = threading.Event()
        self.stood_back: set[psutil.Process] | None = None  # all processes when Ray's were made to yield
        own = {process: _title(process) for process in _children() - others}
        needed = {process: title for process, title in own.items() if title in NEEDED}
        if not options.get("log_to_driver"):
            _kill({process for process, title in own.items() if title == LOGS})
        threading.Thread(target=self._watch, args=(needed,), daemon=True).start()

    def _forget(self) -> None:
        self.orphans.kill()
        self.orphans.wait()
        _stay_on_this_machine(self.before)

    def stand_back(self, whether: bool = True) -> None:
        """Restrict Ray's other processes to cores that training leaves idle (Linux's SCHED_IDLE), or restore this process's
        priority. Where the system forbids restoring it, processes needed after training are left alone.
        """
        if not hasattr(os, "SCHED_IDLE"):
            return
        usual, works = os.sched_getscheduler(0), WORKS if _comes_back() else WORKS | NEEDED
        present = _children()
        for process in present:
            _schedule(process, os.SCHED_IDLE if whether and _title(process) not in works else usual)
        self.stood_back = present if whether else None

    def _help_newcomers(self) -> None:
        """Give processes that Ray starts later this process's priority: with all cores busy, new train workers would hardly
        reach their first step, when every process is adjusted again.
        """
        present = self.stood_back  # training may end meanwhile, and this becomes None
        if present is not None:
            for process in _children() - present:
                _schedule(process, os.sched_getscheduler(0))
                present.add(process)

    def end(self) -> None:
        import ray

        self.over.set()
        ray.shutdown()
        self._forget()

    def _watch(self, needed: dict[psutil.Process, str]) -> None:
        """Report the death of a needed process and exit: nothing can continue, and every file is whole or absent."""
        while not self.over.wait(1.0):
            self._help_newcomers()
            gone = [title for process, title in needed.items() if not _alive(process)]
            if gone and not self.over.is_set():
                why = f"{' and '.join(gone)}, without which Ray cannot work, died or was killed"
                print(f"\nfailed: {why}; the same command goes on where this one stopped", file=sys.stderr, flush=True)
                _kill(_children())
                os._exit(1)


def _start(hush: bool, options: Mapping[str, Any]) -> None:
    """Start Ray, several times if that takes too long."""
    import ray

    for number in range(STARTS):
        others = _children()
        try:
            with hushed() if hush else contextlib.nullcontext():
                ray.init(address="local", **options)
            return
        except Exception as error:
            _kill(_children() - others)
            if isinstance(error, OSError) and error.filename:
                raise InputError(
                    f"Ray cannot start here: {error.filename}: {error.strerror}; it needs a home folder (HOME) and a "
                    f"temporary one (RAY_TMPDIR, else /tmp) that it may write to"
                ) from None
            if "timed out during startup" not in str(error):
                raise
            if number + 1 == STARTS:
                raise NotStarted(
                    f"Ray did not start on this machine in {STARTS} attempts of half a minute. End other programs and run "
                    f"the same command again; Ray's own logs are in {tempfile.gettempdir()}/ray/session_latest/logs"
                ) from None
            say("Ray did not start within half a minute, perhaps because the machine is busy: trying again")


def _stay_on_this_machine(wanted: bool | None = None) -> bool:
    """Tell Ray, which may be imported already, what the environment says of its address (or what is given); returns the setting
    before. Ray's own argument for the address, `_node_ip_address`, does not take a loopback one.
    """
    from ray._private import ray_constants

    before, own = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR) == "1"
    ray_constants.ENABLE_RAY_CLUSTER = own if wanted is None else wanted
    return before


@functools.cache
def _comes_back() -> bool:
    """Whether the system lets a process regain normal scheduling after yielding."""
    came, usual = [], os.sched_getscheduler(0)

    def try_it() -> None:
        with contextlib.suppress(OSError):
            for policy in (os.SCHED_IDLE, usual):
                os.sched_setscheduler(0, policy, os.sched_param(0))  # this thread alone
                came.append(policy)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return len(came) == 2


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _schedule(process: psutil.Process, policy: int) -> None:
    with contextlib.suppress(psutil.Error, OSError):
        for thread in process.threads():
            os.sched_setscheduler(thread.id, policy, os.sched_param(0))


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _title(process: psutil.Process) -> str:
    """A name for one of Ray's processes: its actor's class, its script, or its program."""
    words: Sequence[str] = []
    with contextlib.suppress(psutil.Error):
        words = [word for word in process.cmdline() if word]
    if not words:
        return ""
    if words[0].startswith("ray::"):
        return words[0].removeprefix("ray::").split(".")[0]
    return next((Path(word).stem for word in words[1:] if word.endswith(".py")), Path(words[0]).name)


@contextlib.contextmanager
def hushed(*, but: str = "") -> Iterator[None]:
    """Capture standard error, native code's included; shown if the block fails. If it contains `but`, a PermissionError is
    raised instead.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            text = held.read()
            if but and but.encode() in text:
                raise PermissionError(but) from None
            os.write(kept, text)
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
