"""An executor in this process: for tests, notebooks, and work too small for a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydist.files.stage import Job, Line, Stage, Worker, part_name, write_part
from raydist.files.storage import Storage


def make_part(stage: Stage, folder: Storage, number: int, worker: Worker) -> Line:
    """Read, make and write one part."""
    made = worker.opened(stage)(stage.read(number))
    return write_part(folder, part_name(number, stage.kind), stage.store(made, number, folder))


class LocalExecutor:
    """Makes parts one by one."""

    def __init__(self, threads: int = 1) -> None:
        self.worker = Worker(threads)

    def lines(self, jobs: Sequence[Job]) -> Iterator[tuple[int, int, Line]]:
        for place, job in enumerate(jobs):
            for number in job.numbers:
                yield place, number, make_part(job.stage, job.folder, number, self.worker)
