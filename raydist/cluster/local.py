"""Ray on this machine alone: started again where that took too long, told of when it dies, and made to give way to training."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from raydist.progress import say

# No node is taken away with notice, and the end of a training is seen sooner.
# Its workers stand back for nobody: Ray gives them niceness 15, and a thread that waits for its turn holds up all others.
ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_worker_niceness": "0",
}
# Processes that wait while workers train. Ray wakes each of its Python processes a hundred times a second (0.65 % of a core);
# where training uses all cores, they take it from there. benchmarks/ray_overhead.py has not shown how much of the cost that is.
WAITING = {
    "TrainController",
    "SynchronizationActor",
    "_StatsActor",
    "_AutoscalingCoordinatorActor",
    "DashboardAgent",
    "RuntimeEnvAgent",
    "log_monitor",
    "monitor",
    "dashboard",
}
LAST = 19  # niceness: they run at once when a core is free, else a few times a second
NEEDED = {"gcs_server", "raylet"}  # without them Ray ends this process, too, within a minute and without a word
STARTS = 3


class NotStarted(RuntimeError):
    """There is no cluster to work on."""


class LocalRay:
    """A cluster of this process's own."""

    def __init__(self, *, hush: bool, **options: Any) -> None:
        import ray

        for number in range(STARTS):
            others = _children()
            try:
                with _hushed() if hush else contextlib.nullcontext():
                    ray.init(address="local", **options)
                break
            except Exception as error:
                _kill(_children() - others)
                if "timed out during startup" not in str(error):
                    raise
                if number + 1 == STARTS:
                    raise NotStarted(
                        f"Ray did not start on this machine in {STARTS} attempts of half a minute. End other programs and run "
                        f"the same command again; what Ray says of it is in {tempfile.gettempdir()}/ray/session_latest/logs"
                    ) from None
                say("Ray did not start within half a minute, as on a busy machine: once more")
        self.over = threading.Event()
        needed = {process: title for process in _children() - others if (title := _title(process)) in NEEDED}
        threading.Thread(target=self._watch, args=(needed,), daemon=True).start()

    def stand_back(self) -> None:
        """Let what only waits give way to what trains."""
        for process in _children():
            with contextlib.suppress(psutil.Error):
                if _title(process) in WAITING and process.nice() < LAST:
                    process.nice(LAST)

    def end(self) -> None:
        import ray

        self.over.set()
        ray.shutdown()

    def _watch(self, needed: dict[psutil.Process, str]) -> None:
        """Nothing can go on without these, and every file is whole or not there: so tell, and end."""
        while not self.over.wait(1.0):
            gone = [title for process, title in needed.items() if not _alive(process)]
            if gone and not self.over.is_set():
                told = f"{' and '.join(gone)}, without which Ray cannot work, died or was killed"
                print(f"\nfailed: {told}; the same command goes on where this one stopped", file=sys.stderr, flush=True)
                _kill(_children())
                os._exit(1)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


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
    """What one of Ray's processes is: its actor's class, its script, or its program."""
    words: Sequence[str] = []
    with contextlib.suppress(psutil.Error):
        words = [word for word in process.cmdline() if word]
    if not words:
        return ""
    if words[0].startswith("ray::"):
        return words[0].removeprefix("ray::").split(".")[0]
    return next((Path(word).stem for word in words[1:] if word.endswith(".py")), Path(words[0]).name)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Standard error of native code, too, held back; shown if what is inside fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
