"""Gold and silver pairs of a run as triplets of texts, as other libraries train on: a question, an answer, and no answer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raydist.errors import InputError
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.prepare import open_corpora
from raydist.retrieval.silver import COPY
from raydist.runs.run import Run

NEGATIVES = 5  # candidates kept as no answers, for each question


def write_triplets(run: Run, target: Path) -> int:
    """Write {"anchor", "positive", "negative", "weight", "question_id", "gold"} as JSON Lines; returns their number.

    A negative is a candidate of the question whose probability is at most `mining.negative_p`, the likeliest first; questions
    without one have no triplet.
    """
    mined = Path(run.folder.path("mining", "silver.parquet"))
    if not mined.is_file():
        raise InputError(f"{run.folder.path()} has no mining/silver.parquet: triplets are of runs that mined (raydist mine)")
    corpus = open_corpora(run, ["train"])["train"]
    positives, negatives = _pairs(mined, run.config.mining.negative_p)
    written = 0
    with target.open("w", encoding="utf-8") as file:
        for row in _triplets(corpus, positives, negatives):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            written += 1
    return written


def _pairs(mined: Path, negative_p: float) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[str]]]:
    """The silver answers of each question, and the texts of its likeliest wrong candidates."""
    positives: dict[str, list[dict[str, Any]]] = defaultdict(list)
    wrong: dict[str, list[tuple[float, str]]] = defaultdict(list)
    columns = ["question_id", "sentence_id", "sentence", "kept", "p", "weight", "why_not"]
    for batch in pq.ParquetFile(mined).iter_batches(columns=columns):
        for row in batch.to_pylist():
            if row["kept"]:
                positives[row["question_id"]].append(row)
            elif row["p"] <= negative_p and row["why_not"] != COPY:
                wrong[row["question_id"]].append((-row["p"], row["sentence"]))
    return positives, {id: [text for _, text in sorted(texts)[:NEGATIVES]] for id, texts in wrong.items()}


def _triplets(
    corpus: Corpus, positives: dict[str, list[dict[str, Any]]], negatives: dict[str, list[str]]
) -> Iterator[dict[str, Any]]:
    sentences = corpus.sentence_table()
    for block in range(corpus.num_blocks):
        questions = corpus.questions(block)
        gold = corpus.gold(questions)
        texts = sentences.texts(sentences.rows_of(gold["sentence_id"], "gold sentence")).to_pylist()
        answers: dict[str, list[tuple[str, float, bool]]] = defaultdict(list)
        for id, text in zip(gold["question_id"].to_pylist(), texts):
            answers[id].append((text, 1.0, True))
        for row in questions.to_pylist():
            id = row["question_id"]
            found = answers[id] + [(one["sentence"], one["weight"], False) for one in positives.get(id, ())]
            right = {text for text, _, _ in found}
            wrong = [text for text in negatives.get(id, ()) if text not in right]
            for number, (text, weight, is_gold) in enumerate(found if wrong else ()):
                negative = wrong[number % len(wrong)]
                about = {"weight": weight, "question_id": id, "gold": is_gold}
                yield {"anchor": row["text"], "positive": text, "negative": negative, **about}
