"""What a second worker brings: the same training with one worker of one thread and with two, in turns of a few steps.

    python benchmarks/scaling.py [--turns 12] [--batch-size 32] [key=value ...]

The quickstart's data and model, the same global batch, rows and updates on both sides, each with a Ray cluster of its own.
Needs two free cores. Exit status: 1 if two workers are less than 1.6 times as fast as one.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from lab import RAYDIST
from turns import Side

from raydist.statistics import bootstrap_interval

TURN = 3  # steps
WANTED = 1.6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of both; each step ends in one exchange of gradients")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes end
    settings = [f"train.batch_size={args.batch_size}", "train.log_every=1", "train.checkpoint_every=100000"]
    settings += ["train.max_steps=100000", "train.epochs=10000", "data.dev=null", "data.test=null", *args.settings]
    sides: list[Side] = []
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for workers in (1, 2):  # the second begins when the first has made the windows; none rests before both have begun
                name = f"workers{workers}"
                own = [f"name={name}", f"cluster.workers={workers}", "cluster.threads_per_worker=1", f"storage={folder}"]
                command = [*RAYDIST, "train", "quickstart", *own, *settings]
                sides.append(Side(command, Path(folder, name, "metrics.jsonl"), Path(folder, f"{name}.log")))
                sides[-1].start()
            for side in sides:
                side.rest()
            for number in range(args.turns):
                one, two = (side.turn(TURN) for side in sides)
                ratios.append(one / two)
                print(f"turn {number}: {TURN / one:.2f} steps/s with one worker, {TURN / two:.2f} with two", flush=True)
        finally:
            for side in sides:
                side.end()
    found = bootstrap_interval(ratios, resampled="turns")
    between = f"95 % interval {found.low:.2f} .. {found.high:.2f}"
    print(f"two workers are {found.mean:.2f} times as fast as one ({between}; wanted: {WANTED})")
    return 0 if found.low >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
