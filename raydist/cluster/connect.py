"""Join a cluster or start a local one, no sooner than it is needed."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from raydist.config import ClusterConfig
from raydist.errors import InputError
from raydist.progress import say

WORKER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while another process holds their core cost 4 x
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths mean the same in a worker
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
# Of a cluster on this machine alone: no node of it is taken away with notice, and its end is seen sooner.
# Its workers stand back for nobody: Ray gives them niceness 15, and a thread that waits for its turn holds up all others.
LOCAL_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_worker_niceness": "0",
}
# Processes of a local cluster that wait while workers train. Ray wakes each of its Python processes a hundred times a second;
# where training uses all cores, every wake-up holds up all of its threads: together a twentieth of its speed on two cores.
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


STARTS = 3


class NotStarted(RuntimeError):
    """There is no cluster to work on."""


class Cluster:
    """The cluster a command works on. Nothing is started before `start`: a command that finds all done needs no Ray."""

    def __init__(self, config: ClusterConfig, *, verbose: bool = False) -> None:
        self.config, self.verbose, self.owned, self.local = config, verbose, False, False
        self.before: dict[str, str | None] = {}  # of the environment, before a local cluster was started

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Connect, or start a local cluster, unless that is done."""
        if not self.verbose:
            os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read once, when ray is imported
        import ray

        if ray.is_initialized():
            return
        address = self.config.address or os.environ.get("RAY_ADDRESS")
        level = logging.INFO if self.verbose else logging.ERROR
        quiet = {"log_to_driver": self.verbose, "logging_level": level, "include_dashboard": None}
        if address:
            _check_reachable(address)
            try:
                ray.init(address=address, runtime_env={"env_vars": WORKER_ENVIRONMENT}, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                why = str(error).strip().splitlines()[0]
                raise InputError(
                    f"no Ray cluster answers at {address} ({why}); check cluster.address, or leave it out to run here"
                ) from None
        else:
            given = WORKER_ENVIRONMENT | LOCAL_ENVIRONMENT | {"RAY_DEDUP_LOGS": os.environ.get("RAY_DEDUP_LOGS", "1")}
            self.before = export(given)  # inherited by the workers
            say("starting Ray on this machine")
            self._start_here(quiet | {"include_dashboard": False})
            self.local = True
        self.owned = True
        quieten(level)

    def _start_here(self, options: Mapping[str, Any]) -> None:
        """Ray gives itself half a minute, which may be too short where other programs hold the cores."""
        import psutil
        import ray

        for number in range(STARTS):
            others = set(psutil.Process().children(recursive=True))
            try:
                with contextlib.nullcontext() if self.verbose else _hushed():
                    ray.init(address="local", num_cpus=self.local_cpus, **options)
                return
            except Exception as error:
                for process in set(psutil.Process().children(recursive=True)) - others:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                if "timed out during startup" not in str(error):
                    raise
                if number + 1 == STARTS:
                    raise NotStarted(
                        f"Ray did not start on this machine in {STARTS} attempts of half a minute. End other programs and run "
                        f"the same command again; what Ray says of it is in {tempfile.gettempdir()}/ray/session_latest/logs"
                    ) from None
                say("Ray did not start within half a minute, as on a busy machine: once more")

    @property
    def local_cpus(self) -> int:
        """Logical CPUs: enough that train workers and Ray Data never wait for each other."""
        needed = self.config.max_workers + self.config.actors + 2
        return self.config.local_cpus or max(os.cpu_count() or 1, needed)

    def stand_back(self) -> None:
        """Let the processes of a local cluster that only wait give way to those that train."""
        if not self.local:
            return
        import psutil

        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if _title(process.cmdline()) in WAITING and process.nice() < LAST:
                    process.nice(LAST)

    def __exit__(self, *_: object) -> None:
        if self.owned:
            import ray

            ray.shutdown()
            self.owned = self.local = False
        restore(self.before)


def _title(command: Sequence[str]) -> str:
    """What one of Ray's processes is: its actor's class, or its script."""
    words = [word for word in command if word] or [""]
    if words[0].startswith("ray::"):
        return words[0].removeprefix("ray::").split(".")[0]
    return next((Path(word).stem for word in words[1:] if word.endswith(".py")), "")


def export(values: Mapping[str, str]) -> dict[str, str | None]:
    """Set variables of the environment, for what is started from now on; what `restore` takes to undo it."""
    before = {key: os.environ.get(key) for key in values}
    os.environ |= values
    return before


def restore(before: Mapping[str, str | None]) -> None:
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def _check_reachable(address: str) -> None:
    """Knock before asking: Ray itself would wait for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():  # "auto" and the like: Ray knows where
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); check cluster.address and RAY_ADDRESS, "
            f"or leave both out to run on this machine"
        ) from None


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


def quieten(level: int = logging.ERROR) -> None:
    """Ray's own chatter off; ours tells what matters."""
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_operator_progress_bars = False
    for name in ("ray", "ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(level)
