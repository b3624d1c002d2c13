"""Mining from texts to scored candidates: ours against sentence-transformers' mine_hard_negatives, in interleaved rounds.

    python benchmarks/mining.py [--questions 500] [--sentences N] [--rounds 5] [--threads 2] [--data-dir ../shared/data]
    python benchmarks/mining.py --quick              100 questions, 3 rounds
    python benchmarks/mining.py --as-it-comes        the peer with ten candidates a question and its own batch size
    python benchmarks/mining.py --peer-has ours      the peer's process has our settings

Questions of ReQA-SQuAD and, unless told otherwise, as many of its sentences for each as the whole file has (about one);
invented where the data is absent. The built-in MiniLM finds candidates on both sides, and the same MiniLM with a new head
scores them. A side starts from texts, with its models loaded, encodes and searches the corpus, and ends with every score and
what is kept. Ours also asks BM25, merges, and puts its tables and indexes on disk, as a stage does (without Ray: see
ray_overhead.py for that). The peer searches as deep as gives it our number of pairs for each question, gold pairs included,
which it scores, too; it runs at the batch size that is best for it here. --as-it-comes: it searches for ten, as each of our
sources does, and so scores twelve pairs a call, with the batch size that it has by default. What is compared is time per
scored pair; probabilities of pairs that both sides scored must be equal. --precision bf16: of both sides, and only nearly
equal then.

Each side has a process of its own, and one rests while the other works: how memory is kept and how threads wait are settings of
a process. Ours has those of our workers, the peer's is as the library comes; with --peer-has ours it has the same as ours,
which its user would have to know of. Exit status 1 where the target is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from raydist.cluster.connect import WORKER_ENVIRONMENT

os.environ.update({} if "--peer" in sys.argv else WORKER_ENVIRONMENT)  # before torch starts its threads

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
from raydist.corpus.formats.reqa import read_reqa
from raydist.corpus.open_set import RetrievalSet
from raydist.corpus.sentence_table import build_sentence_table
from raydist.models.folders import model_folder
from raydist.records import SCORED_SCHEMA
from raydist.retrieval import bm25
from raydist.retrieval import dense as dense
from raydist.retrieval.candidates import find_candidates, hit_table
from raydist.retrieval.cross_encoder import sigmoid
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.scoring import CrossScorer
from raydist.retrieval.silver import select_silver, with_texts

TARGET, MAX_LENGTH = 2.5, 480
BATCH_SIZES, TRIES = (4, 8, 16, 32), 3
PEER_BATCH = 32  # by default
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


class Peer:
    """mine_hard_negatives in a process of its own, which waits between its turns."""

    def __init__(self, folder: Path, environment: dict[str, str], options: list[str]) -> None:
        command = [sys.executable, __file__, "--peer", str(folder), *options]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def __call__(self, **what: Any) -> list[tuple[str, str, float]]:
        """Mine; with ``scores``, what it has found: question, sentence and probability of each pair."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        reply = self.process.stdout.readline()
        if not reply:
            raise SystemExit(f"the peer's process ended with status {self.process.wait()}; run {self.process.args} to see why")
        return json.loads(reply)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def be_peer(folder: Path, precision: str) -> int:
    """The other end: a line of JSON tells what to mine, a line says that it is done."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints goes with its bars
    given: dict[str, Any] = {"device": "cpu", "model_kwargs": {"dtype": DTYPES[precision]}}
    encoder = SentenceTransformer(str(model_folder("builtin:minilm")), **given)
    scorer = CrossEncoder(str(folder / "cross_encoder"), max_length=MAX_LENGTH, **given)
    reqa = json.loads((folder / "reqa.json").read_text(encoding="utf-8"))
    golds = [reqa["candidates"][place] for (place,) in reqa["ground_truths"]]
    for line in sys.stdin:
        what = json.loads(line)
        questions, answers = (of[: what["questions"]] for of in (reqa["questions"], golds))
        corpus = list(dict.fromkeys([*answers, *reqa["candidates"]]))[: max(len(set(answers)), what["sentences"])]
        found = mine_hard_negatives(
            Dataset.from_dict({"question": questions, "answer": answers}),
            encoder,
            corpus=corpus,
            cross_encoder=scorer,
            range_max=what["depth"],
            num_negatives=what["depth"],
            max_score=ANY_SCORE,
            output_format="labeled-pair",
            output_scores=True,
            batch_size=what["batch_size"],
            verbose=False,
        )
        rows = [(row["question"], row["answer"], row["score"]) for row in found] if what.get("scores") else []
        print(json.dumps(rows), file=replies, flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--questions", type=int)
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--as-it-comes", action="store_true", help="the peer with ten candidates and its own batch size")
    parser.add_argument("--peer-has", choices=("its own", "ours"), default="its own", help="settings of the peer's process")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)  # the folder that the peer's process works from
    options = parser.parse_args()
    logging.set_verbosity_error()  # a new head is what we want, not a warning
    logging.disable_progress_bar()
    has_ours = options.peer_has == "ours"
    if options.peer:
        if has_ours:
            use_cores(options.threads, keep_all=False)
        else:
            torch.set_num_threads(options.threads)
        return be_peer(options.peer, options.precision)

    use_cores(options.threads, keep_all=False)
    rounds = options.rounds or (3 if options.quick else 5)
    reqa = choose(options.data_dir, options.questions or (100 if options.quick else 500), options.sentences)
    questions, sentences = reqa["questions"], reqa["candidates"]
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
        encoder = TextEncoder(minilm, device="cpu", precision=options.precision)
        scorer = CrossScorer(folder / "cross_encoder", max_length=MAX_LENGTH, device="cpu", precision=options.precision)
        given = ["--threads", str(options.threads), "--precision", options.precision, "--peer-has", options.peer_has]
        bare = {name: value for name, value in os.environ.items() if name not in WORKER_ENVIRONMENT}
        peer = Peer(folder, dict(os.environ) if has_ours else bare, given)

        def ours() -> pa.Table:
            with tempfile.TemporaryDirectory() as place:
                return mine(found, encoder, scorer, Path(place), options.threads)

        silver = ours()  # warms up, and says how many pairs there are
        # as many as ours has, beside one for the gold sentence and one for the gold pair
        depth = TOP if options.as_it_comes else max(1, round(silver.num_rows / len(questions)) - 2)
        few = {"questions": max(8, len(questions) // 8), "sentences": max(32, len(sentences) // 8), "depth": depth}
        tried = {size: [] for size in BATCH_SIZES}
        for turn in range(1 + TRIES):
            for size in BATCH_SIZES:
                took = seconds(lambda size=size: peer(batch_size=size, **few))
                tried[size] += [took] if turn else []  # the first warms up
        best = PEER_BATCH if options.as_it_comes else min(tried, key=lambda size: min(tried[size]))
        all_of_it = {"questions": len(questions), "sentences": len(sentences), "depth": depth, "batch_size": best}
        their_pairs = len(questions) * (depth + 2)

        their_scores = {(question, sentence): score for question, sentence, score in peer(scores=True, **all_of_it)}
        our_scores = dict(zip(zip(silver["question"].to_pylist(), silver["sentence"].to_pylist()), silver["p"].to_pylist()))
        both = their_scores.keys() & our_scores.keys()
        assert both, f"of {len(our_scores)} and {len(their_scores)} pairs none was scored by both sides"
        difference = max(abs(their_scores[pair] - our_scores[pair]) for pair in both)
        assert difference < AGREEMENT[options.precision], f"probabilities differ by {difference}"

        share = silver.num_rows / their_pairs
        their_s, our_s, ratio, said = rounds_of(lambda: peer(**all_of_it), ours, rounds, our_share=share)
        peer.end()
    config = model.config
    texts_of = [silver[name].to_pylist() for name in ("question", "sentence")]
    lengths = np.array([len(ids) for ids in scorer.tokenizer(*texts_of)["input_ids"]])
    encoded = np.array([len(ids) for ids in scorer.tokenizer(sentences + questions)["input_ids"]])
    work = work_of(config, lengths, all_tokens=False) + work_of(config, encoded, all_tokens=True)
    rate, limit = work / our_s, matmul_rate(config, DTYPES[options.precision])
    print(
        f"{len(questions)} questions, {len(sentences)} sentences, {rounds} interleaved rounds, {options.threads} threads, "
        f"{options.precision}, the peer's process with {options.peer_has} settings\n"
        f"  ours {silver.num_rows} pairs, {silver.num_rows / our_s:.1f} a second; mine_hard_negatives at its "
        f"{'own' if options.as_it_comes else 'best'} batch size, {best}, {their_pairs} pairs, "
        f"{their_pairs / their_s:.1f} a second\n"
        f"  per scored pair {said}\n"
        f"  probabilities of {len(both)} pairs that both scored differ by {difference:.1e} at most\n"
        f"  {rate / 1e9:.0f} GFLOP/s of {limit / 1e9:.0f} in matrix products ({rate / limit:.0%})\n"
        f"target ({TARGET} x) {'met' if ratio >= TARGET else 'MISSED'}"
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
