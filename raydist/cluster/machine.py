"""A machine that is a Ray cluster: stages with Ray Data, training with Ray Train, gauges as Ray metrics.

The cluster's Prometheus collects the gauges along with Ray's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from raydist.cluster.connect import Cluster
from raydist.cluster.executor import RayExecutor
from raydist.config import ClusterConfig, Config
from raydist.files.storage import Storage


class RayMachine:
    """Does a run's work on a cluster, joined or started when there is something to make."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def executor(self, settings: ClusterConfig) -> RayExecutor:
        threads = settings.threads_per_worker or max(1, (os.cpu_count() or 1) // settings.num_actors)
        limit, gpus = settings.max_cpus, settings.gpus_per_worker
        return RayExecutor(settings.num_actors, threads, gpus, max_cpus=limit, start=self.cluster.start)

    def fit(self, config: Config, run: Storage, sets: Mapping[str, Any], callbacks: Sequence[Any] = ()) -> dict[str, Any]:
        from raydist.cluster.fit import fit

        return fit(self.cluster, config, run, sets, callbacks)

    def show(self, name: str, value: float, /, **tags: str) -> None:
        set_gauge(name, value, **tags)


# --- gauges ----------------------------------------------------------------------------------------------------------

GAUGES = {
    "raydist_train": ("A logged value of training: loss, weighted and unweighted terms, rate, dev scores.", ("run", "value")),
    "raydist_stage_parts": ("Parts of a stage: done, total.", ("run", "stage", "state")),
    "raydist_rejected_rows": ("Rows of a data set that were refused.", ("run", "set")),
}


@cache
def _gauge(name: str) -> Any:
    from ray.util.metrics import Gauge

    description, tags = GAUGES[name]
    return Gauge(name, description=description, tag_keys=tags)


def set_gauge(name: str, value: float, /, **tags: str) -> None:
    """Set a gauge; without a connected cluster, do nothing."""
    ray = sys.modules.get("ray")  # a command with no work left does not import it
    if ray and ray.is_initialized():
        _gauge(name).set(float(value), tags=tags)
