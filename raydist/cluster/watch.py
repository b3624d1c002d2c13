"""Numbers of a run as Ray metrics, which a cluster's Prometheus collects beside Ray's own."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

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


def show(name: str, value: float, /, **tags: str) -> None:
    """Set a gauge; nothing where no cluster is connected."""
    ray = sys.modules.get("ray")  # a command that finds all done does not load it
    if ray and ray.is_initialized():
        _gauge(name).set(float(value), tags=tags)
