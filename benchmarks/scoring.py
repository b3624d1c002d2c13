"""Cross-encoder scores in float32: ours against sentence-transformers' CrossEncoder, in interleaved rounds.

    python benchmarks/scoring.py [--pairs 2000] [--rounds 5] [--threads 2] [--data-dir ../shared/data]

Pairs are questions of ReQA-SQuAD with sentences of the same file, invented where the data is absent. The model is the built-in
MiniLM with a new head. The peer runs at the batch size that is best for it here; both sides start from texts and end with
logits, which are compared. --wait-policy: benchmarks/waiting.py. Exit status 1 where the target is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from waiting import add_option, wait_policy

os.environ.update(wait_policy())  # before torch starts its threads

import numpy as np
import psutil
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from raydist.cores import use_cores
from raydist.models.folders import model_folder
from raydist.retrieval.scoring import CrossScorer

TARGET, MAX_LENGTH, BATCH_SIZES = 1.4, 480, (4, 8, 16, 32)


def texts(data_dir: Path) -> tuple[list[str], list[str]]:
    """Questions and sentences."""
    path = data_dir / "reqa_squad" / "test-A.json.gz"
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            reqa = json.load(file)
        return reqa["questions"], reqa["candidates"]
    print(f"no data at {data_dir}: all words are invented")
    rng = np.random.default_rng(0)
    words = np.array([f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "rstln"])
    return tuple([" ".join(rng.choice(words, size)) for size in rng.integers(*span, 2000)] for span in ((5, 15), (8, 45)))  # type: ignore[return-value]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def processor_time() -> float:
    """Seconds of this process and its children so far."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children()))


def rounds_of(
    theirs: Callable[[], object], ours: Callable[[], object], rounds: int, our_share: float = 1.0
) -> tuple[float, float, float, str]:
    """Interleaved: median seconds of each side, the median ratio, and that ratio in words.

    Processor time is shown as well: where other work disturbs the machine it is the steadier of the two. Where the sides do
    not do the same amount, `our_share` is ours over theirs, and ratios are per piece of work.
    """
    times = np.zeros((rounds, 2, 2))
    for round in range(rounds):
        for side, work in enumerate((theirs, ours)):
            began = time.perf_counter(), processor_time()
            work()
            times[round, side] = time.perf_counter() - began[0], processor_time() - began[1]
    ratios = times[:, 0] / times[:, 1] * our_share
    wall, cpu = np.median(ratios, axis=0)
    said = f"{wall:.2f} x ({ratios[:, 0].min():.2f} .. {ratios[:, 0].max():.2f}), by processor time {cpu:.2f} x"
    their_s, our_s = np.median(times[:, :, 0], axis=0)
    return their_s, our_s, wall, said


def matmul_rate(config, dtype: torch.dtype = torch.float32) -> float:
    """Floating point operations a second in products of this encoder's shapes: what the machine can do at best, by torch's own
    products or by oneDNN's with weights that are laid out for it.
    """
    hidden, inner, tokens = config.hidden_size, config.intermediate_size, 1024
    shapes = ((tokens, hidden), (tokens, inner), (inner, hidden), (hidden, inner))
    x, y, up, down = (torch.randn(shape).to(dtype) for shape in shapes)
    ways = [lambda: (torch.nn.functional.linear(x, up), torch.nn.functional.linear(y, down))]
    if torch.backends.mkldnn.is_available() and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        product, (laid_up, laid_down) = (
            torch.ops.mkldnn._linear_pointwise,
            (torch.ops.mkldnn._reorder_linear_weight(w, tokens) for w in (up, down)),
        )
        ways.append(lambda: [product(a, w, None, "none", [], "none") for a, w in ((x, laid_up), (y, laid_down))])
    return 4 * tokens * hidden * inner / min(seconds(way) for way in ways for _ in range(20))


def work_of(config, lengths: np.ndarray, all_tokens: bool) -> float:
    """Operations that the results need: all layers over all tokens, the last for the first token only where that is enough."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    whole = lengths * (8 * hidden**2 + 4 * hidden * inner) + 4 * lengths**2 * hidden
    first_only = 4 * hidden**2 * 2 + 4 * hidden * inner + 4 * lengths * hidden * config.num_attention_heads
    return float((whole * layers if all_tokens else whole * (layers - 1) + first_only).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    add_option(parser)
    options = parser.parse_args()
    use_cores(options.threads, keep_all=False)  # of both sides
    logging.set_verbosity_error()  # a new head is what we want, not a warning
    logging.disable_progress_bar()

    questions, sentences = texts(options.data_dir)
    rng = np.random.default_rng(0)
    question_of = np.repeat(rng.permutation(len(questions)), 10)[: options.pairs]  # ten candidates a question, as mining has
    sentence_of = rng.integers(len(sentences), size=len(question_of))
    pairs = [(questions[q], sentences[s]) for q, s in zip(question_of, sentence_of)]
    used, question_of = np.unique(question_of, return_inverse=True)
    questions = [questions[at] for at in used]
    used, sentence_of = np.unique(sentence_of, return_inverse=True)
    sentences = [sentences[at] for at in used]

    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(model_folder("builtin:minilm"), num_labels=1)
        torch.nn.init.normal_(model.classifier.weight, std=1.0)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(model_folder("builtin:minilm")).save_pretrained(folder)
        peer = CrossEncoder(folder, max_length=MAX_LENGTH, device="cpu")
        scorer = CrossScorer(folder, max_length=MAX_LENGTH, device="cpu")

    def theirs(batch_size: int, of: list[tuple[str, str]] = pairs) -> np.ndarray:
        return peer.predict(of, batch_size=batch_size, activation_fn=torch.nn.Identity(), show_progress_bar=False)

    def ours() -> np.ndarray:
        return scorer.score(questions, sentences, question_of, sentence_of)

    sample = pairs[: max(32, len(pairs) // 8)]
    theirs(8, sample)  # warms up
    tried = {size: min(seconds(lambda size=size: theirs(size, sample)) for _ in range(2)) for size in BATCH_SIZES}
    best = min(tried, key=lambda size: tried[size])
    difference = float(np.abs(ours() - theirs(best)).max())
    assert difference < 1e-5 * max(1.0, float(np.abs(ours()).max())), f"scores differ by {difference}"

    their_s, our_s, ratio, said = rounds_of(lambda: theirs(best), ours, options.rounds)
    lengths = np.array([len(ids) for ids in scorer.tokenizer(*map(list, zip(*pairs)))["input_ids"]])
    rate, limit = work_of(model.config, lengths, all_tokens=False) / our_s, matmul_rate(model.config)
    print(
        f"{len(pairs)} pairs of {lengths.mean():.0f} tokens, {options.rounds} interleaved rounds, {options.threads} threads, "
        f"waiting: {options.wait_policy}\n"
        f"  ours {len(pairs) / our_s:.1f} pairs/s, CrossEncoder at its best batch, {best}, {len(pairs) / their_s:.1f} pairs/s\n"
        f"  {said}\n"
        f"  scores differ by {difference:.1e} at most\n"
        f"  {rate / 1e9:.0f} GFLOP/s of {limit / 1e9:.0f} in matrix products ({rate / limit:.0%})\n"
        f"target ({TARGET} x) {'met' if ratio >= TARGET else 'MISSED'}"
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
