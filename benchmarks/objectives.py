"""What an objective adds to a training step: builtin:minilm, batch 16, length 256, in alternating rounds on one process.

    python benchmarks/objectives.py [--rounds 5] [--threads 2] [--batch 16]

Each round takes one step (four for `pfa every 4`) of every kind, in turn, on the same batch; the figure is the ratio to the
plain reader's step of the same round, optimizer included: median (smallest .. largest). Exit status 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from raydist.config import Config
from raydist.cores import use_cores
from raydist.models.folders import model_folder
from raydist.objectives.base import Batch, GroupRows
from raydist.training.loop import train_step
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import build_reader_task

KINDS: dict[str, dict] = {
    "plain": {},
    "infomax": {"infomax": {}},
    "hard learning": {"hard_learning": {}},
    "answer contrast": {"answer_contrast": {}},
    "pfa w1": {"pfa": {}},
    "pfa cos": {"pfa": {"align": "cos"}},
    "pfa every 4": {"pfa": {"every": 4}},
}
TARGETS = {"infomax": 1.05, "hard learning": 1.03, "answer contrast": 1.08, "pfa w1": 2.1, "pfa every 4": 1.3}  # at most


def made_batch(size: int, length: int, seed: int = 0) -> Batch:
    """Random words, no padding: question of 12 tokens, the rest passage, answers of one to four tokens."""
    draw = np.random.default_rng(seed)
    start = draw.integers(20, length - 10, size)
    end = start + draw.integers(0, 4, size)
    position = torch.arange(length)
    rows = GroupRows(
        row=np.arange(size),
        has_answer=np.ones(size, bool),
        passage=np.arange(size),
        answer=np.arange(size),
        tokens=np.full(size, length),
        passage_tokens=np.full(size, length - 15),
    )
    return Batch(
        input_ids_BT=torch.from_numpy(draw.integers(1000, 30000, (size, length))),
        attention_BT=torch.ones(size, length, dtype=torch.bool),
        question_BT=((position >= 1) & (position < 13)).expand(size, length),
        passage_BT=((position >= 14) & (position < length - 1)).expand(size, length),
        start_B=torch.from_numpy(start),
        end_B=torch.from_numpy(end),
        has_answer_B=torch.ones(size, dtype=torch.bool),
        token_types_BT=(position >= 14).long().expand(size, length),
        groups=(rows,),
        group=0,
        mine=torch.arange(size),
        extras=made_sets(torch.from_numpy(start), torch.from_numpy(end), length, draw),
    )


def made_sets(start_B: torch.Tensor, end_B: torch.Tensor, length: int, draw: np.random.Generator, k: int = 20) -> dict:
    """n-best sets of k spans, gold in the fourth place."""
    start_BK = torch.from_numpy(draw.integers(20, length - 10, (len(start_B), k)))
    end_BK = start_BK + torch.from_numpy(draw.integers(0, 6, (len(start_B), k)))
    start_BK[:, 3], end_BK[:, 3] = start_B, end_B
    return {
        "nbest_start_BK": start_BK,
        "nbest_end_BK": end_BK,
        "nbest_mask_BK": torch.ones_like(start_BK, dtype=torch.bool),
        "nbest_type_BK": (start_BK != start_B[:, None]).long() + (end_BK != end_B[:, None]).long(),
        "nbest_gold_B": torch.full_like(start_B, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()
    use_cores(args.threads)  # of all that are compared
    folder = model_folder("builtin:minilm")
    batch = made_batch(args.batch, args.length)
    tasks = {}
    for name, objectives in KINDS.items():
        config = Config(objectives=objectives)
        task = build_reader_task(config, folder).train()
        optimizer = build_optimizer(task, config.optim)
        tasks[name] = (task, optimizer, build_schedule(optimizer, config.optim, 1000, args.batch))

    def seconds(name: str, first: int, steps: int) -> float:
        task, optimizer, schedule = tasks[name]
        started = time.monotonic()
        for step in range(first, first + steps):
            one = Batch(**vars(batch) | {"step": step})
            train_step(task, [one], optimizer, schedule, task.weights(step), clip_norm=1.0)
        return (time.monotonic() - started) / steps

    for name in KINDS:
        seconds(name, 0, 1)  # warm
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    for number in range(args.rounds):
        for name in KINDS:
            found[name].append(seconds(name, 4 * (number + 1), 4 if "every" in name else 1))
        print(f"round {number}: " + "  ".join(f"{name} {times[-1]:.2f} s" for name, times in found.items()), flush=True)
    missed = 0
    for name in KINDS:
        ratios = np.array(found[name]) / np.array(found["plain"])
        ratio, target = float(np.median(ratios)), TARGETS.get(name, np.inf)
        missed += ratio > target
        said = f", target ({target} x) {'MISSED' if ratio > target else 'met'}" if name in TARGETS else ""
        print(f"{name:16} {ratio:.3f} x ({ratios.min():.3f} .. {ratios.max():.3f}){said}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
