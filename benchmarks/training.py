"""Training speed on real SQuAD windows of length 384: ours against the transformers Trainer, in alternating rounds.

    python benchmarks/training.py [--rounds 3] [--steps 12] [--data-dir PATH]

Peers: the Trainer with every window padded to 384 (the question answering example as shipped), and the Trainer with dynamic
padding and its length grouping. Same windows, model, batch size, optimizer and thread count; examples per second of training
steps alone. Each side draws its own batches, so the rounds should be long enough to average over lengths.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from raydist.config import Config
from raydist.corpus.readers import plan_splits, read_split
from raydist.models import model_folder
from raydist.reader.features import make_windows
from raydist.reader.rows import WindowRows
from raydist.records import examples_table
from raydist.storage import encode_table
from raydist.training.cores import use_cores
from raydist.training.loop import seed_step, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import build_reader_task

LENGTH, BATCH = 384, 16


def make_rows(data: Path, folder: Path, scratch: Path) -> WindowRows:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    examples = [e for split in plan_splits([str(data / "squad/train-subset-v1.1.json.gz")]) for e in read_split(split)[0]]
    chosen = examples_table([examples[i] for i in np.random.default_rng(0).permutation(len(examples))[:4000]])
    windows = make_windows(chosen, tokenizer, max_length=LENGTH, max_question_length=64, doc_stride=128)
    (scratch / "part.arrow").write_bytes(encode_table(windows, "arrow", {"examples": 4000}))
    return WindowRows([scratch / "part.arrow"])


class Clock(TrainerCallback):
    """The time from the end of the first step to the end of the last."""

    def on_step_end(self, args, state, control, **kwargs):
        self.last = time.monotonic()
        if state.global_step == 1:
            self.first = self.last


def peer(rows: WindowRows, folder: Path, steps: int, seed: int, *, fixed: bool) -> float:
    dataset = [
        {
            "input_ids": rows.values("input_ids", i).tolist(),
            "token_type_ids": rows.values("token_types", i).tolist(),
            "start_positions": int(rows._numbers["start"][i]),
            "end_positions": int(rows._numbers["end"][i]),
        }
        for i in range(len(rows))
    ]

    def collate(batch: list[dict]) -> dict[str, torch.Tensor]:
        longest = LENGTH if fixed else max(len(row["input_ids"]) for row in batch)
        padded = {
            key: torch.tensor([row[key] + [0] * (longest - len(row[key])) for row in batch])
            for key in ("input_ids", "token_type_ids")
        }
        padded["attention_mask"] = torch.tensor(
            [[1] * len(r["input_ids"]) + [0] * (longest - len(r["input_ids"])) for r in batch]
        )
        return padded | {key: torch.tensor([row[key] for row in batch]) for key in ("start_positions", "end_positions")}

    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            scratch,
            per_device_train_batch_size=BATCH,
            max_steps=steps + 1,
            learning_rate=1e-4,
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            train_sampling_strategy="random" if fixed else "group_by_length",
        )
        clock = Clock()
        model = AutoModelForQuestionAnswering.from_pretrained(folder)
        Trainer(model, arguments, train_dataset=dataset, data_collator=collate, callbacks=[clock]).train()
    return steps * BATCH / (clock.last - clock.first)


def ours(rows: WindowRows, folder: Path, steps: int, seed: int) -> float:
    config = Config(model={"name": "builtin:minilm"}, optim={"lr": 1e-4})
    task = build_reader_task(config, folder)
    optimizer = build_optimizer(task, config.optim)
    schedule = build_schedule(optimizer, config.optim, steps, BATCH)
    task.train()
    started = 0.0
    plan = {"batch_size": BATCH, "accumulate": 1, "rank": 0, "ranks": 1, "pad_id": 0}
    for step, batches in training_steps(rows, seed=seed, first=0, last=steps + 1, **plan):
        seed_step(seed, step, 0)
        train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0)
        started = started or time.monotonic()
    return steps * BATCH / (time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    use_cores(args.threads)  # of all that are compared
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = model_folder("builtin:minilm")
    with tempfile.TemporaryDirectory() as scratch:
        rows = make_rows(args.data_dir, folder, Path(scratch))
        print(f"{len(rows):,} windows, mean length {rows.lengths.mean():.0f}, batch {BATCH}, {args.threads} threads")
        found: dict[str, list[float]] = {"fixed padding": [], "length grouping": [], "raydist": []}
        for number in range(args.rounds):
            found["fixed padding"].append(peer(rows, folder, args.steps, number, fixed=True))
            found["length grouping"].append(peer(rows, folder, args.steps, number, fixed=False))
            found["raydist"].append(ours(rows, folder, args.steps, number))
            print("  ".join(f"{name} {speeds[-1]:.2f}" for name, speeds in found.items()), "examples/s", flush=True)
    for name in ("fixed padding", "length grouping"):
        ratios = np.array(found["raydist"]) / np.array(found[name])
        print(f"raydist / {name}: {np.median(ratios):.2f} ({ratios.min():.2f} .. {ratios.max():.2f})")


if __name__ == "__main__":
    main()
