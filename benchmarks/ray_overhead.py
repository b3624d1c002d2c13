"""What Ray Train costs: steps per second of a run on Ray against the same loop without Ray, in turns of ten steps.

    python benchmarks/ray_overhead.py [--turns 12]

Both have processes of their own, and one of them rests (SIGSTOP, with all of Ray's processes on its side) while the other makes
ten steps, so that a machine whose speed changes changes it for both. Start-up is told apart, and the first steps of a process,
which are slow with Ray and without, are left out on both sides. The same windows,
model, batches, updates, log lines and environment of threads on both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from raydist.cluster.connect import WORKER_ENVIRONMENT

LINE, TURN = 5, 10  # steps to a line of the log, steps of a turn


def plain(arguments: list[str], out: Path) -> None:
    """The loop without Ray; a line in `out` for every turn."""
    from transformers import AutoTokenizer

    from raydist.cluster import pipeline
    from raydist.cluster.connect import Cluster
    from raydist.config import load_config
    from raydist.reader.rows import WindowRows
    from raydist.training.cores import use_cores
    from raydist.training.loop import seed_step, train_step, training_steps
    from raydist.training.optim import build_optimizer, build_schedule
    from raydist.training.tasks import build_reader_task

    config = load_config("quickstart", arguments).config
    run = pipeline.Run(config, Cluster(config.cluster))
    where = pipeline.prepare(run, ["train"])["train"].where  # the other side made it
    rows = WindowRows([Path(where["windows_folder"]) / name for name in where["windows"]])
    use_cores(config.cluster.threads_per_worker)
    task = build_reader_task(config, run.model_folder)
    steps = config.train.max_steps
    optimizer = build_optimizer(task, config.optim)
    schedule = build_schedule(optimizer, config.optim, steps, config.train.batch_size)
    pad_id = AutoTokenizer.from_pretrained(run.model_folder).pad_token_id
    plan = {"batch_size": config.train.batch_size, "accumulate": 1, "rank": 0, "ranks": 1, "pad_id": pad_id}
    task.train()
    for step, batches in training_steps(rows, seed=0, first=0, last=steps, **plan):
        seed_step(0, step, 0)
        report = train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=config.optim.clip_norm)
        if (step + 1) % LINE == 0:
            with out.open("a") as file:
                file.write(json.dumps({"step": step + 1, "loss": report.loss}) + "\n")


class Side:
    """A process with its children, and the file it adds a line to at the end of a turn."""

    def __init__(self, command: list[str], lines: Path) -> None:
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = psutil.Popen(command, env=os.environ | WORKER_ENVIRONMENT, **silent)
        self.begun, self.lines, self.seconds = time.monotonic(), lines, []

    def start(self) -> float:
        """Seconds from the command to the end of its first steps; then it rests."""
        self._wait(1)
        took = time.monotonic() - self.begun
        self._all(signal.SIGSTOP)
        return took

    def turn(self) -> float:
        """Seconds of a turn's steps, after some that do not count: waking up has a price that no one pays who never sleeps."""
        self._all(signal.SIGCONT)
        self._wait(self._steps() + 1)
        begun = time.monotonic()
        self._wait(self._steps() + TURN // LINE)
        took = time.monotonic() - begun
        self._all(signal.SIGSTOP)
        return took

    def _wait(self, lines: int) -> None:
        while self._steps() < lines:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.process.args} ended with status {self.process.returncode}")
            time.sleep(0.02)

    def end(self) -> None:
        family = self._family()
        self._all(signal.SIGCONT)
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress((subprocess.TimeoutExpired, psutil.TimeoutExpired)):
            self.process.wait(20)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _steps(self) -> int:
        return self.lines.read_bytes().count(b'"loss"') if self.lines.exists() else 0

    def _family(self) -> list[psutil.Process]:
        try:
            return [self.process, *self.process.children(recursive=True)] if self.process.is_running() else []
        except psutil.NoSuchProcess:
            return []

    def _all(self, what: int) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--model", default="builtin:minilm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.plain:
        return plain(rest, args.plain)
    with tempfile.TemporaryDirectory() as storage:
        settings = [
            "name=cost",
            f"storage={storage}",
            f"model.name={args.model}",
            f"train.max_steps={(TURN + LINE) * (args.turns + 3)}",
            "train.epochs=1000",
            "train.checkpoint_every=100000",
            f"train.log_every={LINE}",
            "data.test=null",
            "data.dev=null",
            f"cluster.threads_per_worker={args.threads}",
            *rest,
        ]
        run = Path(storage, "cost")
        on_ray = Side([sys.executable, "-m", "raydist", "train", "quickstart", *settings], run / "metrics.jsonl")
        sides = [on_ray]
        try:
            startup = on_ray.start()
            alone = Path(storage, "plain.jsonl")
            sides.append(Side([sys.executable, __file__, "--plain", str(alone), *settings], alone))
            alone_startup = sides[1].start()
            for side in sides:
                side.turn()
            ratios = []
            for number in range(args.turns):
                seconds = [side.turn() for side in sides]
                ratios.append(seconds[1] / seconds[0])
                for side, took in zip(sides, seconds, strict=True):
                    side.seconds.append(took)
                print(f"turn {number}: {seconds[1]:.2f} s plain, {seconds[0]:.2f} s on Ray, ratio {ratios[-1]:.3f}", flush=True)
        finally:
            for side in sides:
                side.end()
    rates = [args.turns * TURN / sum(side.seconds) for side in sides]
    print(f"until {LINE} steps are made: {alone_startup:.0f} s plain, {startup:.0f} s on Ray, which makes the windows, too")
    print(f"{rates[1]:.2f} steps/s plain, {rates[0]:.2f} on Ray")
    print(f"ratio {rates[0] / rates[1]:.3f}; of single turns {np.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})")


if __name__ == "__main__":
    main()
