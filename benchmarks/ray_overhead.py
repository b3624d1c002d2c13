"""What Ray Train costs: steps per second of a run on Ray against the same loop in this process, in alternating rounds.

    python benchmarks/ray_overhead.py [--rounds 3] [--steps 40]

Start-up (from the command to the first step) is told apart, and the first ten steps of a process, which are slow with Ray and
without, are left out on both sides. The same windows, model, batches, updates and environment of threads on both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from raydist.cluster import pipeline
from raydist.cluster.connect import Cluster
from raydist.config import load_config
from raydist.reader.rows import WindowRows
from raydist.training.cores import use_cores
from raydist.training.loop import seed_step, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import build_reader_task

WARM = 10  # steps


def plain(run: pipeline.Run, steps: int, threads: int) -> float:
    """Examples per second of the loop without Ray, in this process."""
    config = run.config
    where = pipeline.prepare(run, ["train"])["train"].where
    rows = WindowRows([Path(where["windows_folder"]) / name for name in where["windows"]])
    use_cores(threads)
    task = build_reader_task(config, run.model_folder)
    optimizer = build_optimizer(task, config.optim)
    schedule = build_schedule(optimizer, config.optim, steps, config.train.batch_size)
    pad_id = AutoTokenizer.from_pretrained(run.model_folder).pad_token_id
    plan = {"batch_size": config.train.batch_size, "accumulate": 1, "rank": 0, "ranks": 1, "pad_id": pad_id}
    task.train()
    started = 0.0
    for step, batches in training_steps(rows, seed=0, first=0, last=steps, **plan):
        seed_step(0, step, 0)
        train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0)
        if step + 1 == WARM:
            started = time.monotonic()
    return (steps - WARM) * config.train.batch_size / (time.monotonic() - started)


def on_ray(run: pipeline.Run) -> float:
    """The same of a run, by its log, which has a line for every ten steps."""
    lines = [json.loads(line) for line in Path(run.folder.path("metrics.jsonl")).read_text().splitlines()]
    rates = [line["examples_per_s"] for line in lines if line["step"] > WARM]
    return len(rates) / sum(1 / rate for rate in rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--model", default="builtin:minilm")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    ratios, startups = [], []
    with tempfile.TemporaryDirectory() as storage:
        settings = [
            f"storage={storage}",
            f"model.name={args.model}",
            f"train.max_steps={args.steps}",
            "train.checkpoint_every=100000",
            f"train.log_every={WARM}",
        ]
        settings += ["data.test=null", "data.dev=null", f"cluster.threads_per_worker={args.threads}"]
        for number in range(args.rounds):
            config = load_config("quickstart", [*settings, f"name=round{number}"]).config
            with Cluster(config.cluster) as cluster:
                run = pipeline.Run(config, cluster)
                run.begin()
                pipeline.prepare(run, ["train"])
                without = plain(run, args.steps, args.threads)
                pipeline.train(run)
            fitted = run.folder.read_json("fitted.json")
            within = on_ray(run)
            ratios.append(within / without)
            startups.append(fitted["startup_s"])
            print(f"round {number}: {without:.2f} examples/s plain, {within:.2f} on Ray, ratio {ratios[-1]:.3f}")
    print(f"ratio {np.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f}); start-up {np.median(startups):.1f} s")


if __name__ == "__main__":
    main()
