"""This process as a machine, for notebooks, scripts and tests. Nothing is started, nothing is shared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from raydist.config import ClusterConfig, Config
from raydist.files.local import LocalExecutor
from raydist.files.storage import Storage


class Here:
    """Does a run's work in this process, one part or training step at a time."""

    def executor(self, settings: ClusterConfig) -> LocalExecutor:
        return LocalExecutor(settings.threads_per_worker or os.cpu_count() or 1)

    def fit(self, config: Config, run: Storage, sets: Mapping[str, Any], callbacks: Sequence[Any] = ()) -> dict[str, Any]:
        from raydist.training.train import fit_here

        return fit_here(config, run, sets)

    def show(self, name: str, value: float, /, **tags: str) -> None:
        """Do nothing: there is no monitoring."""
