"""Machines that are this process, for tests: parts are made as on another node, and training may be left out."""

import os
from pathlib import Path

from raydist.files.local import LocalExecutor
from raydist.here import Here


class Elsewhere(Here):
    """Makes parts in this process, as on another node: with a cache of its own."""

    def __init__(self, cache: Path) -> None:
        self.cache = str(cache)

    def executor(self, settings):
        return _Node(LocalExecutor(settings.threads_per_worker or 1), self.cache)


class _Node:
    def __init__(self, executor, cache: str) -> None:
        self.executor, self.cache = executor, cache

    def lines(self, jobs):
        lines = self.executor.lines(jobs)
        while True:
            before = os.environ.get("RAYDIST_CACHE")
            os.environ["RAYDIST_CACHE"] = self.cache
            try:
                line = next(lines, None)
            finally:
                if before is None:
                    os.environ.pop("RAYDIST_CACHE")
                else:
                    os.environ["RAYDIST_CACHE"] = before
            if line is None:
                return
            yield line


class Untrained(Elsewhere):
    """Training leaves the model that it begins with."""

    def fit(self, config, run, sets, callbacks=()):
        import tempfile

        from raydist.training.trainable import open_trainable

        trainable = open_trainable(config, sets, 0, 1)
        with tempfile.TemporaryDirectory() as folder:
            trainable.save(trainable.build_task(1), Path(folder))
            run.upload(Path(folder), "model")
        fitted = {"steps": 0, "seconds": 0.0, "examples_per_s": 0.0}
        run.write_json("fitted.json", fitted)
        return fitted
