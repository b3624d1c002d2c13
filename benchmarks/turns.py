"""Two trainings on one machine that take turns: one of them rests (SIGSTOP, with all of its processes) while the other makes
some steps, so that a machine whose speed changes changes it for both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from lab import Family

from raydist.cluster.connect import WORKER_ENVIRONMENT

PATIENCE_S = 600
ENVIRONMENT = WORKER_ENVIRONMENT | {"RAY_health_check_failure_threshold": "1000"}  # who rests does not answer


class Side(Family):
    """A training that adds a line to `lines` after every so many steps."""

    def __init__(self, command: Sequence[str], lines: Path, log: Path) -> None:
        self.lines, self.begun = lines, time.monotonic()
        super().__init__(command, Path.cwd(), log, os.environ | ENVIRONMENT)

    def start(self) -> float:
        """Seconds from the command to its first line."""
        self._wait(1)
        return time.monotonic() - self.begun

    def turn(self, lines: int) -> float:
        """Seconds that so many lines take, after one that does not count: waking up has its price. Then it rests."""
        self._signal(signal.SIGCONT)
        self._wait(1)
        begun = time.monotonic()
        self._wait(lines)
        took = time.monotonic() - begun
        self.rest()
        return took

    def rest(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, what: int) -> None:
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                process.send_signal(what)

    def _wait(self, more: int) -> None:
        """Until there are so many more lines."""
        wanted, ends = self._count() + more, time.monotonic() + PATIENCE_S
        while self._count() < wanted:
            if self.status is not None or self._count() < wanted - more or time.monotonic() > ends:
                told = f"ended, began anew, or made no step for {PATIENCE_S} s ({self.tell()})"
                raise SystemExit(f"{self.lines}: {told}; its output:\n{self.output}")
            time.sleep(0.01)

    def _count(self) -> int:
        return self.lines.read_bytes().count(b"\n") if self.lines.exists() else 0
