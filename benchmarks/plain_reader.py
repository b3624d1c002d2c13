"""The yardstick: a reader trained by a plain transformers loop, with the settings of configs/real_squad.yaml.

    python benchmarks/plain_reader.py --seed 0 --out plain_0.json          one run: scores on dev-A, AddSent-A, AddOneSent-A
    python benchmarks/plain_reader.py --compare runs/real_squad_0 ... --plain plain_0.json ...    ours beside it

Nothing of raydist is used but its reader of files, its choice of 4,000 questions, and its scores (which equal the official
definition; see the tests). Batches are grouped by length, as the Trainer's group_by_length does.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, get_linear_schedule_with_warmup
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.utils import logging

from raydist.cores import use_cores
from raydist.corpus.examples import plan_splits, read_split
from raydist.draws import draw_questions
from raydist.models.folders import model_folder
from raydist.reader.metrics import aggregate, score_predictions
from raydist.statistics import adversarial_scores

LENGTH, STRIDE, QUESTIONS, EPOCHS, BATCH, LR, WARMUP, N = 256, 128, 4000, 2, 16, 1e-4, 0.1, 20
TESTS = {
    "squad": "squad/dev-A-v1.1.json.gz",
    "addsent": "adversarial_squad/addsent-A.json.gz",
    "addonesent": "adversarial_squad/addonesent-A.json.gz",
}


def examples_of(path: Path) -> list:
    return [example for split in plan_splits([str(path)]) for example in read_split(split)[0]]


def windows_of(examples: list, tokenizer, with_labels: bool, length: int = LENGTH) -> list[dict]:
    """Windows as the transformers example makes them, padded to the batch's longest later."""
    encoded = tokenizer(
        [example.question for example in examples],
        [example.context for example in examples],
        truncation="only_second",
        max_length=length,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = []
    for i, sample in enumerate(encoded["overflow_to_sample_mapping"]):
        sequence, offsets = encoded.sequence_ids(i), encoded["offset_mapping"][i]
        row = {"input_ids": encoded["input_ids"][i], "token_type_ids": encoded["token_type_ids"][i], "example": sample}
        row["offsets"] = [offset if part == 1 else None for offset, part in zip(offsets, sequence)]
        if with_labels:
            answer = examples[sample].answers[0]
            first, last = answer.start, answer.start + len(answer.text)
            inside = [t for t, offset in enumerate(row["offsets"]) if offset and offset[0] < last and offset[1] > first]
            whole = inside and row["offsets"][inside[0]][0] <= first and row["offsets"][inside[-1]][1] >= last
            row["start"], row["end"] = (inside[0], inside[-1]) if whole else (0, 0)
        rows.append(row)
    return rows


def pad(rows: list[dict], length: int | None = None) -> dict[str, torch.Tensor]:
    longest = length or max(len(row["input_ids"]) for row in rows)
    batch = {
        "input_ids": torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]),
        "token_type_ids": torch.tensor([row["token_type_ids"] + [0] * (longest - len(row["token_type_ids"])) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]),
    }
    if "start" in rows[0]:
        batch["start_positions"] = torch.tensor([row["start"] for row in rows])
        batch["end_positions"] = torch.tensor([row["end"] for row in rows])
    return batch


@torch.inference_mode()
def predict(model, tokenizer, examples: list, length: int = LENGTH) -> dict[str, str]:
    """Best text per question: top-20 starts x top-20 ends of every window."""
    model.eval()
    best: dict[str, tuple[float, str]] = {}
    rows = windows_of(examples, tokenizer, with_labels=False, length=length)
    rows.sort(key=lambda row: len(row["input_ids"]))
    for at in range(0, len(rows), 16):
        batch = rows[at : at + 16]
        output = model(**pad(batch))
        for row, start, end in zip(batch, output.start_logits.numpy(), output.end_logits.numpy()):
            example, offsets = examples[row["example"]], row["offsets"]
            for s in np.argsort(-start)[:N]:
                for e in np.argsort(-end)[:N]:
                    if max(s, e) >= len(offsets) or not offsets[s] or not offsets[e] or e < s or e - s >= 30:
                        continue
                    score = float(start[s] + end[e])
                    if score > best.get(example.id, (-np.inf, ""))[0]:
                        best[example.id] = (score, example.context[offsets[s][0] : offsets[e][1]])
    return {id: text for id, (_, text) in best.items()}


def train(data: Path, seed: int, questions: int, max_steps: int | None):
    torch.manual_seed(seed)
    folder = model_folder("builtin:minilm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder)
    examples = examples_of(data / "squad/train-subset-v1.1.json.gz")
    draws = draw_questions([example.id for example in examples], 0, adversarial=False)  # those that ours takes, for every seed
    rows = windows_of([examples[i] for i in np.sort(np.argsort(draws)[:questions])], tokenizer, with_labels=True)
    generator = torch.Generator().manual_seed(seed)
    lengths = [len(row["input_ids"]) for row in rows]
    sampler = LengthGroupedSampler(BATCH, lengths=lengths, generator=generator)
    loader = DataLoader(rows, BATCH, sampler=sampler, collate_fn=pad)
    steps = len(loader) * EPOCHS
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2]}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP * steps), steps)
    model.train()
    started, step = time.time(), 0
    for _ in range(EPOCHS):
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                print(f"step {step}/{steps} loss {loss.item():.3f} {time.time() - started:.0f} s", flush=True)
            if max_steps and step >= max_steps:
                return model, tokenizer
    return model, tokenizer


def scores_of(model, tokenizer, data: Path, tests: list[str]) -> dict[str, float]:
    scores = {}
    for name in tests:
        examples = examples_of(data / TESTS[name])
        texts = predict(model, tokenizer, examples)
        rows = score_predictions(texts, examples, "squad")
        scores |= {f"{name}.{key}": aggregate(rows)[key] for key in ("f1", "em")}
        if name != "squad":
            worst = aggregate(adversarial_scores(rows))
            scores |= {f"{name}.addsent_{key}": worst[key] for key in ("f1", "em")}
            scores[f"{name}.original_f1"] = aggregate([row for row in rows if "-" not in row.id])["f1"]
    return {key: round(float(value), 3) for key, value in scores.items()}


def compare(runs: list[Path], plain: list[Path]) -> None:
    ours = [json.loads((run / "metrics.json").read_text()) for run in runs]
    theirs = [json.loads(path.read_text()) for path in plain]
    print(f"{'score':28} {'plain loop':>18} {'raydist':>18} {'difference':>11}")
    for key in theirs[0]:
        if key in ours[0]:
            a, b = np.array([x[key] for x in theirs]), np.array([x[key] for x in ours])
            print(
                f"{key:28} {a.mean():10.2f} ± {a.std(ddof=1) if len(a) > 1 else 0:5.2f} {b.mean():10.2f} ± "
                f"{b.std(ddof=1) if len(b) > 1 else 0:5.2f} {b.mean() - a.mean():+11.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tests", nargs="+", choices=TESTS, default=list(TESTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs="+", default=[])
    parser.add_argument("--plain", type=Path, nargs="+", default=[])
    args = parser.parse_args()
    logging.set_verbosity_error()
    if args.compare:
        return compare(args.compare, args.plain)
    use_cores(args.threads)
    scores = scores_of(*train(args.data_dir, args.seed, args.questions, args.max_steps), args.data_dir, args.tests)
    print(json.dumps(scores, indent=1))
    if args.out:
        args.out.write_text(json.dumps(scores))


if __name__ == "__main__":
    main()
