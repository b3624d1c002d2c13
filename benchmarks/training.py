"""Training on real SQuAD windows of length 384: ours against the transformers Trainer, in alternating rounds.

    python benchmarks/training.py [--rounds 3] [--questions 400] [--data-dir PATH]
    python benchmarks/training.py --rounds 1 --questions 2000 --dev 1000        F1 after the epoch, too

Peers: the Trainer with every window padded to 384 (the question answering example as shipped), and the Trainer with dynamic
padding and its length grouping. Same windows, model, batch size, learning rate and thread count; examples per second over one
whole epoch, after a first step that does not count. The Trainer sorts 50 batches at a time, as it does for sets of more than
3,200 windows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import plain_reader
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices
from transformers.utils import logging

from raydist.config import Config
from raydist.cores import use_cores
from raydist.corpus.examples import plan_splits, read_split
from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.reader.features import make_windows
from raydist.reader.metrics import aggregate, score_predictions
from raydist.reader.rows import WindowRows
from raydist.records import Example, examples_table
from raydist.training.loop import seed_step, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import build_reader_task

LENGTH, BATCH, LR, WARMUP = 384, 16, 1e-4, 0.1


def read(path: Path, questions: int) -> list[Example]:
    examples = [example for split in plan_splits([str(path)]) for example in read_split(split)[0]]
    chosen = np.sort(np.random.default_rng(0).permutation(len(examples))[:questions])
    return [examples[i] for i in chosen]


def make_rows(examples: list[Example], folder: Path, file: Path) -> WindowRows:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = examples_table(examples)
    windows = make_windows(table, tokenizer, max_length=LENGTH, max_question_length=64, doc_stride=128)
    file.write_bytes(encode_table(windows, "arrow", {"examples": len(examples)}))
    return WindowRows([file])


class Clock(TrainerCallback):
    """The time from the beginning of the epoch to the end of its last step."""

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.first = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        self.last = time.monotonic()


class GroupingTrainer(Trainer):
    """The Trainer's own grouping, with as large groups for a small set as for a large one."""

    def _get_train_sampler(self, train_dataset=None):
        rows = self.train_dataset if train_dataset is None else train_dataset
        generator = torch.Generator().manual_seed(self.args.seed)
        lengths = [len(row["input_ids"]) for row in rows]
        return get_length_grouped_indices(lengths, BATCH, mega_batch_mult=50, generator=generator)


def peer(rows: WindowRows, folder: Path, seed: int, *, fixed: bool) -> tuple[float, torch.nn.Module]:
    """Examples per second, and the trained model."""
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
            num_train_epochs=1,
            learning_rate=LR,
            warmup_steps=WARMUP,  # below one: a share
            weight_decay=0.01,
            max_grad_norm=1.0,
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        clock = Clock()
        torch.manual_seed(seed)
        model = AutoModelForQuestionAnswering.from_pretrained(folder)
        model(**collate(dataset[:BATCH])).loss.backward()  # what a process does once: memory, threads
        model.zero_grad()
        trainer = Trainer if fixed else GroupingTrainer
        trainer(model, arguments, train_dataset=dataset, data_collator=collate, callbacks=[clock]).train()
    return len(rows) / (clock.last - clock.first), model


def ours(rows: WindowRows, folder: Path, seed: int) -> tuple[float, torch.nn.Module]:
    config = Config(model={"name": "builtin:minilm"}, optim={"lr": LR, "warmup_share": WARMUP}, seed=seed)
    task = build_reader_task(config, folder)
    optimizer = build_optimizer(task, config.optim)
    steps = -(-len(rows) // BATCH)
    schedule = build_schedule(optimizer, config.optim, steps, BATCH)
    task.train()
    sum(term.mean for term in task(rows.batch(np.arange(BATCH), pad_id=0)).values()).backward()
    optimizer.zero_grad()
    plan = {"batch_size": BATCH, "accumulate": 1, "rank": 0, "ranks": 1, "pad_id": 0}
    started = time.monotonic()
    for step, batches in training_steps(rows, seed=seed, first=0, last=steps, **plan):
        seed_step(seed, step, 0)
        train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0)
    return len(rows) / (time.monotonic() - started), task.reader.question_answering


def f1_of(model: torch.nn.Module, folder: Path, examples: list[Example]) -> float:
    """By the same procedure for all sides."""
    texts = plain_reader.predict(model, AutoTokenizer.from_pretrained(folder), examples, LENGTH)
    return aggregate(score_predictions(texts, examples, "squad"))["f1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--dev", type=int, default=0, help="questions of squad/dev-A to score on after each epoch")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    use_cores(args.threads)  # of all that are compared
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = model_folder("builtin:minilm")
    with tempfile.TemporaryDirectory() as scratch:
        examples = read(args.data_dir / "squad/train-subset-v1.1.json.gz", args.questions)
        rows = make_rows(examples, folder, Path(scratch) / "part.arrow")
        dev = read(args.data_dir / "squad/dev-A-v1.1.json.gz", args.dev)
        print(f"{len(rows):,} windows, mean length {rows.lengths.mean():.0f}, batch {BATCH}, {args.threads} threads")
        sides = {
            "fixed padding": lambda seed: peer(rows, folder, seed, fixed=True),
            "length grouping": lambda seed: peer(rows, folder, seed, fixed=False),
            "raydist": lambda seed: ours(rows, folder, seed),
        }
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        scores: dict[str, list[float]] = {name: [] for name in sides}
        for seed in range(args.rounds):
            told = []
            for name, train in sides.items():
                speed, model = train(seed)
                speeds[name].append(speed)
                if dev:
                    scores[name].append(f1_of(model, folder, dev))
                told.append(f"{name} {speed:.2f} examples/s" + (f", F1 {scores[name][-1]:.1f}" if dev else ""))
            print("; ".join(told), flush=True)
    for name in ("fixed padding", "length grouping"):
        ratios = np.array(speeds["raydist"]) / np.array(speeds[name])
        gain = f"; F1 {np.mean(scores['raydist']) - np.mean(scores[name]):+.1f} on average" if dev else ""
        print(f"raydist / {name}: {np.median(ratios):.2f} ({ratios.min():.2f} .. {ratios.max():.2f}){gain}")


if __name__ == "__main__":
    main()
