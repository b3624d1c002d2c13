"""Questions that arrive together share a call of the models: a queue, and one thread that takes what waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from raydist.serving.service import Unavailable

log = logging.getLogger("raydist.serving")


@dataclass
class Job:
    """One question that waits. Only jobs of one group share a call."""

    group: Hashable
    item: Any
    future: Future[Any] = field(default_factory=Future)


class Batcher:
    """Calls `work(group, items)` with up to `most` items of a group; results in the order of the items.

    An idle service starts at once. A busy one, whose last call had several items, waits up to `wait` seconds for more: clients
    that were answered together ask again together.
    """

    def __init__(
        self,
        work: Callable[[Any, Sequence[Any]], Sequence[Any]],
        most: int,
        wait: float,
        seen: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.work, self.most, self.wait, self.seen = work, most, wait, seen
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._last, self._ended = 1, False
        threading.Thread(target=self._run, name="raydist-batches", daemon=True).start()

    def submit(self, group: Hashable, item: Any) -> Future[Any]:
        """A future of the result; cancelled before its turn, the item is left out."""
        job = Job(group, item)
        with self._changed:
            if self._ended:
                raise Unavailable("the service is ending", 1.0)
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    def end(self) -> None:
        """Take no more; what waits is still done."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _run(self) -> None:
        while jobs := self._take():
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if jobs:
                self._last = len(jobs)
                self.seen(len(jobs))
                self._answer(jobs)

    def _take(self) -> list[Job]:
        """The oldest job, and those that may share its call; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._last > 1 and self.wait and not self._ended:
                expected = min(self._last, self.most)
                self._changed.wait_for(lambda: len(self._waiting) >= expected or self._ended, self.wait)
            group = self._waiting[0].group if self._waiting else None
            taken = [job for job in self._waiting if job.group == group][: self.most]
            chosen = set(map(id, taken))
            self._waiting = [job for job in self._waiting if id(job) not in chosen]
            return taken

    def _answer(self, jobs: Sequence[Job]) -> None:
        try:
            results = self.work(jobs[0].group, [job.item for job in jobs])
        except Exception as fault:
            if len(jobs) == 1:
                jobs[0].future.set_exception(fault)
                return
            for job in jobs:  # the fault of one is not that of the others
                self._answer([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)
