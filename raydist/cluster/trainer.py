"""Ray Train's trainer without the parts that raydist does not use."""

from __future__ import annotations

from typing import Any

from ray.train.torch import TorchTrainer

DATASETS = "DatasetsCallback"  # shards Ray datasets; raydist reads rows from files
CLEANER = "PlacementGroupCleanerCallback"  # frees resources of a lost driver; a local cluster ends with its driver


class Trainer(TorchTrainer):
    """TorchTrainer without two slow auxiliary processes and without Ray's handler of Ctrl-C.

    It overrides private methods of Ray; a test checks their names.
    """

    def __init__(self, *args: Any, local: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unused = {DATASETS, CLEANER} if local else {DATASETS}

    def _register_sigint_handler(self, controller: Any) -> None:
        """Register none: Ray's own would silently end this process with status 0. Without it Ctrl-C raises KeyboardInterrupt,
        and the workers end with the driver."""

    def _create_default_callbacks(self) -> list:
        return [callback for callback in super()._create_default_callbacks() if type(callback).__name__ not in self.unused]
