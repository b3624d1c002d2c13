"""A machine that is a Ray cluster: stages with Ray Data, training with Ray Train, gauges as Ray metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from raydist.cluster.connect import Cluster
from raydist.cluster.executor import RayExecutor
from raydist.cluster.watch import show
from raydist.config import ClusterConfig, Config
from raydist.files.storage import Storage


class RayMachine:
    """Does a run's work on a cluster, which is joined or started when there is something to make."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def executor(self, settings: ClusterConfig) -> RayExecutor:
        threads = settings.threads_per_worker or max(1, (os.cpu_count() or 1) // settings.actors)
        return RayExecutor(settings.actors, threads, settings.gpus_per_worker, start=self.cluster.start)

    def fit(self, config: Config, run: Storage, sets: Mapping[str, Any], callbacks: Sequence[Any] = ()) -> dict[str, Any]:
        from raydist.cluster.fit import fit

        return fit(self.cluster, config, run, sets, callbacks)

    def show(self, name: str, value: float, /, **tags: str) -> None:
        show(name, value, **tags)
