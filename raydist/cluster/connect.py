"""Join a cluster or start a local one, no sooner than it is needed."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping
from typing import Any, Self

from raydist.cluster import local
from raydist.config import ClusterConfig
from raydist.errors import InputError
from raydist.terminal import say

WORKER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while another process holds their core cost 4 x
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths mean the same in a worker
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


class Cluster:
    """The cluster of a command. Nothing runs before `start`: a command with no work left needs no Ray."""

    def __init__(self, config: ClusterConfig, *, verbose: bool = False) -> None:
        self.config, self.verbose, self.joined = config, verbose, False
        self.here: local.LocalRay | None = None  # a cluster that this process started
        self.before: dict[str, str | None] = {}  # environment variables before a local cluster was started

    def __getstate__(self) -> dict[str, Any]:
        """Tune sends copies to trials, which have joined a cluster already: a copy owns none."""
        return self.__dict__ | {"here": None, "joined": False}

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Connect, or start a local cluster; a second call does nothing."""
        if not self.verbose:
            os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read once, when ray is imported
        import ray

        if ray.is_initialized():
            return
        at_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            self._start()
        except SystemExit as stop:  # raised by Ray's own handler, installed while Ray starts
            if stop.code == signal.SIGTERM and callable(at_sigterm):
                at_sigterm(signal.SIGTERM, None)
            raise
        finally:  # Ray's own handler would later print a stack and abort
            if callable(at_sigterm) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, at_sigterm)

    def _start(self) -> None:
        import ray

        address = self.config.address or os.environ.get("RAY_ADDRESS")
        level = logging.INFO if self.verbose else logging.ERROR
        quiet = {"log_to_driver": self.verbose, "logging_level": level}
        if address:
            _check_reachable(address)
            try:
                with local.hushed(but="Unauthenticated"):
                    ray.init(address=address, runtime_env={"env_vars": WORKER_ENVIRONMENT}, **quiet)
                self.joined = True
            except (PermissionError, ray.exceptions.AuthenticationError):
                mode = os.environ.get("RAY_AUTH_MODE", "not set")
                raise InputError(
                    f"the cluster at {address} requires a token, and accepts none from here (RAY_AUTH_MODE is {mode}): set "
                    f"RAY_AUTH_MODE=token, and the cluster's own token in RAY_AUTH_TOKEN or ~/.ray/auth_token "
                    f"(on the head node, `ray get-auth-token` shows it)"
                ) from None
            except (ConnectionError, RuntimeError, ValueError) as error:
                why = str(error).strip().splitlines()[0]
                raise InputError(
                    f"no Ray cluster answers at {address} ({why}); check cluster.address, or leave it out to run here"
                ) from None
        else:
            wanted = local.ENVIRONMENT | {"RAY_DEDUP_LOGS": "1"}
            kept = {key: os.environ.get(key, value) for key, value in wanted.items()}  # the user's values win
            self.before = export(WORKER_ENVIRONMENT | kept)  # inherited by the workers
            say("starting Ray on this machine")
            own = {"num_cpus": self.local_cpus, "include_dashboard": False}
            self.here = local.LocalRay(hush=not self.verbose, **own, **quiet)
        quieten(level)

    @property
    def local_cpus(self) -> int:
        """Logical CPUs: enough that train workers and Ray Data never wait for each other."""
        needed = self.config.max_workers + self.config.num_actors + 2
        return self.config.local_cpus or max(os.cpu_count() or 1, needed)

    def __exit__(self, *_: object) -> None:
        if self.here:
            self.here.end()
            self.here = None
        elif self.joined:
            import ray

            ray.shutdown()
            self.joined = False
        restore(self.before)


def export(values: Mapping[str, str]) -> dict[str, str | None]:
    """Set environment variables for processes started from now on; returns the old values for `restore`."""
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
    """Probe the address first: Ray itself would wait for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():  # "auto" and the like: Ray resolves them
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); check cluster.address and RAY_ADDRESS, "
            f"or leave both out to run on this machine"
        ) from None


def quieten(level: int = logging.ERROR) -> None:
    """Silence Ray's own output; ours reports what matters."""
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_operator_progress_bars = False
    for name in ("ray", "ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(level)
