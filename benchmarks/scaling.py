"""What a second worker brings: the same training with one worker of one thread and with two, in turns of a few steps.

    python benchmarks/scaling.py [--turns 12] [--batch-size 32] [key=value ...]

The quickstart's data and model, the same global batch, rows and updates on both sides. Each is a command with a Ray cluster of
its own, and one of them rests (SIGSTOP, with all of its processes) while the other makes its turn, so that a change of the
machine's speed strikes both. Needs two free cores. Exit status: 1 if two workers are less than 1.6 times as fast as one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
from lab import RAYDIST, Family

from raydist.reader.significance import bootstrap_interval

TURN = 3  # steps
WANTED = 1.6
PATIENCE_S = 600


class Side(Family):
    """A training that makes steps when it is its turn."""

    def __init__(self, workers: int, storage: Path, settings: list[str]) -> None:
        self.lines = storage / f"workers{workers}" / "metrics.jsonl"
        own = [f"name=workers{workers}", f"cluster.workers={workers}", "cluster.threads_per_worker=1", f"storage={storage}"]
        command = [*RAYDIST, "train", "quickstart", *own, *settings]
        patient = os.environ | {"RAY_health_check_failure_threshold": "1000"}  # who rests does not answer
        super().__init__(command, Path.cwd(), storage / f"workers{workers}.log", patient)

    def turn(self) -> float:
        """Seconds of a turn's steps, after one that does not count: waking up has its price."""
        self._signal(signal.SIGCONT)
        self.wait(1)
        begun = time.monotonic()
        self.wait(TURN)
        took = time.monotonic() - begun
        self.rest()
        return took

    def rest(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, what: int) -> None:
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                process.send_signal(what)

    def wait(self, more: int) -> None:
        """Until the log has so many more lines."""
        wanted, ends = self._count() + more, time.monotonic() + PATIENCE_S
        while self._count() < wanted:
            if self.status is not None or self._count() < wanted - more or time.monotonic() > ends:
                told = f"ended, began anew, or made no step for {PATIENCE_S} s ({self.tell()})"
                raise SystemExit(f"{self.lines.parent.name}: {told}; its output:\n{self.output}")
            time.sleep(0.01)

    def _count(self) -> int:
        return self.lines.read_bytes().count(b"\n") if self.lines.exists() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of both; each step ends in one exchange of gradients")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes end
    settings = [f"train.batch_size={args.batch_size}", "train.log_every=1", "train.checkpoint_every=100000"]
    steps = (TURN + 2) * (args.turns + 10)
    settings += [f"train.max_steps={steps}", "train.epochs=1000", "data.dev=null", "data.test=null"]
    sides: list[Side] = []
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for workers in (1, 2):  # the second begins when the first has made the windows; none rests before both have begun
                sides.append(Side(workers, Path(folder), settings + args.settings))
                sides[-1].wait(1)
            for side in sides:
                side.rest()
            for number in range(args.turns):
                one, two = (side.turn() for side in sides)
                ratios.append(one / two)
                print(f"turn {number}: {TURN / one:.2f} steps/s with one worker, {TURN / two:.2f} with two", flush=True)
        finally:
            for side in sides:
                side.end()
    found = bootstrap_interval(ratios, resampled="turns")
    between = f"95 % interval {found.low:.2f} .. {found.high:.2f}"
    print(f"two workers are {found.mean:.2f} times as fast as one ({between}; wanted: {WANTED})")
    return 0 if found.mean >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
