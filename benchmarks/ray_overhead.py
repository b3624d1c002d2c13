"""What Ray Train costs: steps per second of a run on Ray against the same loop without Ray, in turns of ten steps.

    python benchmarks/ray_overhead.py [--turns 12] [--threads 2] [key=value ...]

Both have processes of their own. Start-up is told apart, and the first steps of a process, which are slow with Ray and without,
are left out on both sides. The same windows, model, batches, updates, log lines and environment of threads on both. The
workers that made the windows wait five minutes for more to do; here one second, so that the turns are those of a long training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from lab import RAYDIST
from turns import Side

LINE, TURN = 5, 10  # steps to a line of the log, steps of a turn


def plain(arguments: list[str], out: Path) -> None:
    """The loop without Ray; a line in `out` for every few steps."""
    from transformers import AutoTokenizer

    from raydist.config import load_config
    from raydist.cores import use_cores
    from raydist.here import Here
    from raydist.reader.prepare import prepare
    from raydist.runs.run import Run
    from raydist.training.loop import seed_step, train_step, training_steps
    from raydist.training.optim import build_optimizer, build_schedule
    from raydist.training.tasks import build_reader_task
    from raydist.training.trainable import open_windows

    config = load_config("quickstart", arguments).config
    run = Run(config, Here())
    rows = open_windows(prepare(run, ["train"])["train"])  # the other side made them
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--model", default="builtin:minilm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.plain:
        return plain(rest, args.plain)
    settings = [f"model.name={args.model}", f"cluster.threads_per_worker={args.threads}", "data.test=null", "data.dev=null"]
    settings += ["train.max_steps=100000", "train.epochs=10000", "train.checkpoint_every=100000", f"train.log_every={LINE}"]
    os.environ |= {"RAY_idle_worker_killing_time_threshold_ms": "1000"}
    sides: list[Side] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = ["name=cost", f"storage={folder}", *settings, *rest]
        alone = Path(folder, "plain.jsonl")
        commands = {
            Path(folder, "cost", "metrics.jsonl"): [*RAYDIST, "train", "quickstart", *settings],
            alone: [sys.executable, __file__, "--plain", str(alone), *settings],
        }
        try:
            startups = []
            for lines, command in commands.items():
                sides.append(Side(command, lines, Path(folder, f"{len(sides)}.log")))
                startups.append(sides[-1].start())
                sides[-1].rest()
            for side in sides:
                side.turn(1)
            seconds = []
            for number in range(args.turns):
                seconds.append([side.turn(TURN // LINE) for side in sides])
                on_ray, without = seconds[-1]
                print(f"turn {number}: {without:.2f} s plain, {on_ray:.2f} s on Ray, ratio {without / on_ray:.3f}", flush=True)
        finally:
            for side in sides:
                side.end()
    ratios = [without / on_ray for on_ray, without in seconds]
    on_ray, without = (args.turns * TURN / sum(column) for column in zip(*seconds))
    print(f"until {LINE} steps are made: {startups[1]:.0f} s plain, {startups[0]:.0f} s on Ray, which makes the windows, too")
    print(f"{without:.2f} steps/s plain, {on_ray:.2f} on Ray")
    print(f"ratio {on_ray / without:.3f}; of single turns {np.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})")


if __name__ == "__main__":
    main()
