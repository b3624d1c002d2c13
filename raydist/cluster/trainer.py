"""Ray Train's trainer without processes that training here has no use for: each takes seconds to start on a small machine."""

from __future__ import annotations

from typing import Any

from ray.train.torch import TorchTrainer

DATASETS = "DatasetsCallback"  # hands out shards of Ray datasets; rows are read from files here
CLEANER = "PlacementGroupCleanerCallback"  # frees what a lost driver held; a local cluster ends with its driver


class Trainer(TorchTrainer):
    """By the names of Ray's callbacks: under other names they would stay, and cost what they cost."""

    def __init__(self, *args: Any, local: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unused = {DATASETS, CLEANER} if local else {DATASETS}

    def _create_default_callbacks(self) -> list:
        return [callback for callback in super()._create_default_callbacks() if type(callback).__name__ not in self.unused]
