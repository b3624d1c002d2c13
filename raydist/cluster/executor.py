"""The Ray Data executor: parts of stages as rows of a dataset, made on the workers of a cluster.

Without a device, reading, making and writing are one task per part: the next stage reuses the workers of this one, with their
imports. With a device they are three operators: tasks that read, an autoscaling pool of actors that hold the model, tasks that
write, so the device never waits for a tokenizer or a store. Ray Data schedules, spreads and retries; the driver receives one
line per part.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from raydist.errors import InputError
from raydist.files.local import make_part
from raydist.files.stage import Job, Line, Worker, describe_part, part_name, write_part
from raydist.files.storage import StorageError

if TYPE_CHECKING:
    from ray.data import Dataset

STOP = "stop"  # in a stage's folder: a part failed, start no others
MOST_TASKS = 1000  # per execution; beyond that, a task makes several parts


@dataclass(frozen=True)
class RayExecutor:
    """Makes parts with Ray Data on the connected cluster."""

    actors: int = 1  # parts made at once
    threads: int = 1  # per part
    gpus: float = 0  # per part
    resources: Mapping[str, float] = field(default_factory=dict)  # another device: Ray's custom resources
    max_cpus: int | None = None  # of tasks and actors together
    start: Callable[[], None] = lambda: None  # starts the cluster unless one is connected

    def lines(self, jobs: Sequence[Job]) -> Iterator[tuple[int, int, Line]]:
        """(position of the job, number of the part, its line) as parts are completed."""
        self.start()
        folders = [job.folder for job in jobs if job.numbers]
        for folder in folders:
            folder.delete(STOP)
        problem: Exception | None = None
        for batch in self._dataset(jobs).iter_batches(batch_size=None, prefetch_batches=0):  # prefetching delays reports
            for outcome in map(pickle.loads, batch["outcome"]):
                if isinstance(outcome, Exception) and problem is None:
                    problem = outcome
                    for folder in folders:  # and wait for running parts: the next command must not meet them
                        with contextlib.suppress(StorageError):
                            folder.write_bytes(STOP, b"")
                elif outcome is None and problem is None:
                    problem = StorageError("a part of this stage failed in another command; run the same command again")
                elif problem is None:
                    yield outcome
        if problem:
            for folder in folders:
                folder.delete(STOP)
            raise problem

    def _dataset(self, jobs: Sequence[Job]) -> Dataset:
        import ray
        import ray.data
        from ray.data import ActorPoolStrategy, ExecutionResources, TaskPoolStrategy

        total = sum(len(job.numbers) for job in jobs)
        work = Work(ray.put(list(jobs)), self.threads)
        rows = ray.data.range(total, override_num_blocks=min(total, MOST_TASKS))
        if self.max_cpus:
            rows.context.execution_options.resource_limits = ExecutionResources.for_limits(cpu=self.max_cpus)
        tasks: dict[str, Any] = {"batch_size": 1, "num_cpus": 1}
        at_once = TaskPoolStrategy(size=max(1, min(self.actors, total)))
        uses_device = (self.gpus or self.resources) and any(job.stage.uses_model for job in jobs)
        if not uses_device:
            return rows.map_batches(write_parts, fn_args=[work], compute=at_once, **tasks)
        device: dict[str, Any] = {"num_gpus": self.gpus} if self.gpus else {}
        device |= {"resources": dict(self.resources)} if self.resources else {}
        pool = ActorPoolStrategy(min_size=1, max_size=max(1, min(self.actors, total)))
        read = rows.map_batches(read_parts, fn_args=[work], **tasks)
        made = read.map_batches(PartMaker, fn_constructor_args=[work], compute=pool, batch_size=1, num_cpus=0, **device)
        return made.map_batches(store_parts, fn_args=[work], **tasks)


# --- in a worker -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """The payload of a worker: the jobs, stored once per node, and its number of threads."""

    jobs: Any  # a reference to list[Job]
    threads: int

    def part(self, row: int) -> tuple[int, Job, int]:
        """The position of a row's job, the job, and the number of the part."""
        for place, job in enumerate(_jobs(self.jobs)):
            if row < len(job.numbers):
                return place, job, job.numbers[row]
            row -= len(job.numbers)
        raise IndexError(row)


@lru_cache(maxsize=2)
def _jobs(reference: Any) -> list[Job]:
    import ray

    return ray.get(reference)


@lru_cache(maxsize=1)
def _worker(threads: int) -> Worker:
    return Worker(threads)


def write_parts(batch: Mapping[str, np.ndarray], work: Work) -> dict[str, list[bytes]]:
    """Read, make and write the parts that a batch names."""

    def written(row: int) -> Any:
        place, job, number = work.part(row)
        if line := _made_before(job, number):
            return place, number, line
        return place, number, make_part(job.stage, job.folder, number, _worker(work.threads))

    return {"outcome": [_outcome(written, row, work) for row in batch["id"]]}


def read_parts(batch: Mapping[str, np.ndarray], work: Work) -> dict[str, list]:
    """Read the inputs of a batch's parts."""

    def read(row: int) -> Any:
        _, job, number = work.part(row)
        return job.stage.read(number)

    return {"id": list(batch["id"]), "outcome": [_outcome(read, row, work) for row in batch["id"]]}


class PartMaker:
    """The model of a stage on its device: an actor, since Ray ends a worker after a task that had a GPU."""

    def __init__(self, work: Work) -> None:
        self.work, self.worker = work, Worker(work.threads)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, list]:
        def made(row: int, read: Any) -> Any:
            return self.worker.opened(self.work.part(row)[1].stage)(read)

        outcomes = [_onward(made, row, content, self.work) for row, content in zip(batch["id"], batch["outcome"])]
        return {"id": list(batch["id"]), "outcome": outcomes}


def store_parts(batch: Mapping[str, np.ndarray], work: Work) -> dict[str, list]:
    """Write finished parts, even if their stage has been stopped since: a device's work is not thrown away."""

    def stored(row: int, made: Any) -> Any:
        place, job, number = work.part(row)
        name = part_name(number, job.stage.kind)
        return place, number, write_part(job.folder, name, job.stage.store(made, number, job.folder))

    return {
        "outcome": [_onward(stored, row, content, work, may_stop=False) for row, content in zip(batch["id"], batch["outcome"])]
    }


def _outcome(step: Any, row: int, work: Work, *given: Any, may_stop: bool = True) -> bytes:
    """A step's result, pickled; None if the stage was stopped. A user's error is returned, not raised: Ray would wrap it and
    hide its type. (With cloudpickle: classes defined in a notebook cannot be imported elsewhere.)"""
    from ray import cloudpickle

    try:
        stopped = may_stop and work.part(row)[1].folder.exists(STOP)
        return cloudpickle.dumps(None if stopped else step(row, *given), protocol=5)
    except (InputError, StorageError) as error:
        return pickle.dumps(type(error)(str(error)))


def _onward(step: Any, row: int, content: bytes, work: Work, *, may_stop: bool = True) -> bytes:
    """Apply the next step to the previous one's outcome; a stop or an error is passed on unchanged."""
    given = pickle.loads(content)
    return content if given is None or isinstance(given, Exception) else _outcome(step, row, work, given, may_stop=may_stop)


def _made_before(job: Job, number: int) -> Line | None:
    """The line of a part that an earlier attempt of this task made, if its tasks make several."""
    if len(job.numbers) <= MOST_TASKS:
        return None
    name = part_name(number, job.stage.kind)
    return describe_part(name, job.folder.read_bytes(name)) if job.folder.exists(name) else None
