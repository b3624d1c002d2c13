"""Mining from texts to scored candidates: ours against sentence-transformers' mine_hard_negatives, in interleaved rounds.

    python benchmarks/mining.py [--questions 500] [--sentences N] [--rounds 5] [--threads 2] [--data-dir ../shared/data]
    python benchmarks/mining.py --quick              100 questions, 3 rounds

Questions of ReQA-SQuAD and, unless told otherwise, as many of its sentences for each as the whole file has (about one);
invented where the data is absent. The built-in MiniLM finds candidates on both sides, and the same MiniLM with a new head
scores them. A side starts from texts, with its models loaded, encodes and searches the corpus, and ends with every score and
what is kept. Ours also asks BM25, merges, and puts its tables and indexes on disk, as a stage does (without Ray: see
ray_overhead.py for that). The peer searches as deep as gives it our number of pairs for each question, gold pairs included,
which it scores, too; it runs at the batch size that is best for it here. What is compared is time per scored pair;
probabilities of pairs that both sides scored must be equal. --precision bf16: of both sides, and only nearly equal then.
--wait-policy: benchmarks/waiting.py. Exit status 1 where the target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from waiting import add_option, wait_policy

os.environ.update(wait_policy())  # before torch starts its threads

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset
from scoring import matmul_rate, rounds_of, seconds, texts, work_of
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.util import mine_hard_negatives
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from raydist.cores import use_cores
from raydist.corpus.passages import RetrievalSet, read_reqa
from raydist.corpus.sentences import build_sentence_table
from raydist.mining import bm25
from raydist.mining.candidates import find_candidates, hit_table
from raydist.mining.cross_encoder import sigmoid
from raydist.mining.scoring import CrossScorer
from raydist.mining.silver import select_silver, with_texts
from raydist.models import model_folder
from raydist.records import SCORED_SCHEMA
from raydist.retriever import index as dense
from raydist.retriever.encode import TextEncoder

TARGET, MAX_LENGTH, BATCH_SIZES = 2.5, 480, (4, 8, 16, 32)
TOP, BLOCK = 10, 500  # mining.candidates and mining.part_questions, as they are by default
DTYPES, AGREEMENT = {"fp32": torch.float32, "bf16": torch.bfloat16}, {"fp32": 1e-5, "bf16": 0.1}  # of probabilities
ANY_SCORE = 2.0  # above every probability: with a bound the peer asks its cross-encoder, with this one it drops nothing


def choose(data_dir: Path, num_questions: int, num_sentences: int | None) -> dict[str, list]:
    """A ReQA file's content: questions with one gold sentence each, these sentences, and others; no text is there twice."""
    path = data_dir / "reqa_squad" / "test-A.json.gz"
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            reqa = json.load(file)
        questions, candidates, truths = (reqa[key] for key in ("questions", "candidates", "ground_truths"))
    else:
        questions, candidates = texts(data_dir)
        truths = [[number % len(candidates)] for number in range(len(questions))]
    gold: dict[str, str] = {}
    for at in np.random.default_rng(0).permutation(len(questions)):
        if len(truths[at]) == 1 and len(gold) < num_questions:
            gold.setdefault(questions[at], candidates[truths[at][0]])
    wanted = num_sentences or len(candidates) * len(gold) // len(questions)
    kept = list(dict.fromkeys([*gold.values(), *candidates]))[: max(wanted, len(gold))]
    place = {text: number for number, text in enumerate(kept)}
    return {"questions": list(gold), "candidates": kept, "ground_truths": [[place[text]] for text in gold.values()]}


def mine(found: RetrievalSet, encoder: TextEncoder, scorer: CrossScorer, folder: Path, threads: int) -> pa.Table:
    """What the stages of mining do, one after the other: every candidate with its score, kept or why not, and its texts."""
    table = build_sentence_table(folder / "table", [found.sentences], [found.passages])
    rows = np.arange(len(table))
    ids, sentences = table.ids(rows).to_pylist(), table.texts(rows).to_pylist()
    bm25.build_index(folder / "bm25", ids, sentences)
    dense.build_index(folder / "dense", ids, encoder.encode_sentences(table, rows, context=False))
    by_words, by_vectors = bm25.Index.open(folder / "bm25"), dense.DenseIndex.open(folder / "dense", device="cpu")
    silver = []
    for first in range(0, found.questions.num_rows, BLOCK):
        questions = found.questions.slice(first, BLOCK)
        names, asked = questions["question_id"].to_pylist(), questions["text"].to_pylist()
        words, vectors = by_words.search(asked, TOP, threads=threads), by_vectors.search(encoder.encode(asked), TOP)
        hits = [
            hit_table(names, hit.rows, hit.scores, index.sentence_ids)
            for hit, index in ((words, by_words), (vectors, by_vectors))
        ]
        pairs = find_candidates(questions, found.gold, *hits, table, top=TOP)
        question_of = pc.index_in(pairs["question_id"], value_set=questions["question_id"].combine_chunks()).to_numpy()
        used, sentence_of = np.unique(table.rows_of(pairs["sentence_id"], "the candidate"), return_inverse=True)
        logits = scorer.score(asked, table.texts(used).to_pylist(), question_of, sentence_of)
        columns = [*pairs.columns, pa.array(logits), pa.array(sigmoid(logits), pa.float32()), pa.array([""] * len(logits))]
        chosen = select_silver(pa.table(columns, schema=SCORED_SCHEMA), sentences=table)
        silver.append(with_texts(chosen, questions, table))
    return pa.concat_tables(silver)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--questions", type=int)
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    add_option(parser)
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 5)
    use_cores(options.threads, keep_all=False)  # of both sides
    logging.set_verbosity_error()  # a new head is what we want, not a warning
    logging.disable_progress_bar()

    reqa = choose(options.data_dir, options.questions or (100 if options.quick else 500), options.sentences)
    questions, sentences = reqa["questions"], reqa["candidates"]
    golds = [sentences[place] for (place,) in reqa["ground_truths"]]
    pairs_of_gold = Dataset.from_dict({"question": questions, "answer": golds})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "reqa.json").write_text(json.dumps(reqa), encoding="utf-8")
        found = read_reqa(folder / "reqa.json")
        torch.manual_seed(0)
        minilm = model_folder("builtin:minilm")
        model = AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=1)
        torch.nn.init.normal_(model.classifier.weight, std=1.0)
        model.save_pretrained(folder / "cross_encoder")
        AutoTokenizer.from_pretrained(minilm).save_pretrained(folder / "cross_encoder")
        theirs_in: dict[str, Any] = {"device": "cpu", "model_kwargs": {"dtype": DTYPES[options.precision]}}
        peer_encoder = SentenceTransformer(str(minilm), **theirs_in)
        peer_scorer = CrossEncoder(str(folder / "cross_encoder"), max_length=MAX_LENGTH, **theirs_in)
        ours_in: dict[str, Any] = {"device": "cpu", "precision": options.precision}
        encoder = TextEncoder(minilm, **ours_in)
        scorer = CrossScorer(folder / "cross_encoder", max_length=MAX_LENGTH, **ours_in)

    def ours() -> pa.Table:
        with tempfile.TemporaryDirectory() as folder:
            return mine(found, encoder, scorer, Path(folder), options.threads)

    silver = ours()  # warms up, and says how many pairs there are
    depth = max(1, round(silver.num_rows / len(questions)) - 2)  # beside one for the gold sentence and one for the gold pair

    def theirs(batch_size: int, of: Dataset = pairs_of_gold, corpus: list[str] = sentences) -> Dataset:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # its bars cannot be switched off
            return mine_hard_negatives(
                of,
                peer_encoder,
                corpus=corpus,
                cross_encoder=peer_scorer,
                range_max=depth,
                num_negatives=depth,
                max_score=ANY_SCORE,
                output_format="labeled-pair",
                output_scores=True,
                batch_size=batch_size,
                verbose=False,
            )

    few = pairs_of_gold.select(range(max(4, len(questions) // 8)))
    some = list(dict.fromkeys([*few["answer"], *sentences]))[: max(32, len(sentences) // 8)]
    theirs(8, few, some)  # warms up
    tried = {size: min(seconds(lambda size=size: theirs(size, few, some)) for _ in range(2)) for size in BATCH_SIZES}
    best = min(tried, key=lambda size: tried[size])
    their_pairs = len(questions) * (depth + 2)

    their_scores = {(row["question"], row["answer"]): row["score"] for row in theirs(best)}
    our_scores = dict(zip(zip(silver["question"].to_pylist(), silver["sentence"].to_pylist()), silver["p"].to_pylist()))
    both = their_scores.keys() & our_scores.keys()
    assert both, f"of {len(our_scores)} and {len(their_scores)} pairs none was scored by both sides"
    difference = max(abs(their_scores[pair] - our_scores[pair]) for pair in both)
    assert difference < AGREEMENT[options.precision], f"probabilities differ by {difference}"

    share = silver.num_rows / their_pairs
    their_s, our_s, ratio, said = rounds_of(lambda: theirs(best), ours, rounds, our_share=share)
    config = model.config
    texts_of = [silver[name].to_pylist() for name in ("question", "sentence")]
    lengths = np.array([len(ids) for ids in scorer.tokenizer(*texts_of)["input_ids"]])
    encoded = np.array([len(ids) for ids in scorer.tokenizer(sentences + questions)["input_ids"]])
    work = work_of(config, lengths, all_tokens=False) + work_of(config, encoded, all_tokens=True)
    rate, limit = work / our_s, matmul_rate(config, DTYPES[options.precision])
    print(
        f"{len(questions)} questions, {len(sentences)} sentences, {rounds} interleaved rounds, {options.threads} threads, "
        f"{options.precision}, waiting: {options.wait_policy}\n"
        f"  ours {silver.num_rows} pairs, {silver.num_rows / our_s:.1f} a second; mine_hard_negatives at its best batch, "
        f"{best}, {their_pairs} pairs, {their_pairs / their_s:.1f} a second\n"
        f"  per scored pair {said}\n"
        f"  probabilities of {len(both)} pairs that both scored differ by {difference:.1e} at most\n"
        f"  {rate / 1e9:.0f} GFLOP/s of {limit / 1e9:.0f} in matrix products ({rate / limit:.0%})\n"
        f"target ({TARGET} x) {'met' if ratio >= TARGET else 'MISSED'}"
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
