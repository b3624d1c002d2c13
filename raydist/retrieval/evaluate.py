"""Ranked lists of several methods -> metrics with intervals, files in TREC format, a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from raydist.files.stage import encode_table
from raydist.records import RANKED_SCHEMA
from raydist.retrieval.candidates import Ranked
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.metrics import RetrievalScores, Ties, gold_of, join_scores, score_run, trec_gold, trec_run
from raydist.runs.run import Run
from raydist.statistics import bootstrap_interval, paired_bootstrap
from raydist.terminal import say_table

TESTED = RANKED_SCHEMA.names[2:]  # metrics with intervals and paired comparisons
COMPARED = [  # beside `gold`, with which every method is compared
    ("gold_silver_weighted", "gold_silver"),
    ("hybrid", "bm25"),
    ("hybrid", "gold_silver_weighted"),
    ("hybrid", "untrained"),
    ("hybrid_reranked", "hybrid"),
    ("hybrid_reranked", "reranked"),
]
Scores = dict[str, dict[str, float]]  # by test set: METHOD.METRIC, as in metrics.json
SHOWN = ("P@1", "P@5", "P@10", "MRR@100")


def reranked(first: Ranked, lists: Ranked, depth: int) -> Ranked:
    """Each list with its first `depth` hits replaced by those of `first`, then the rest in their order."""
    for question, hits in lists.items():
        lowest = min((score for _, score in first.get(question, [])), default=0.0)
        rest = [(sentence, lowest - place) for place, (sentence, _) in enumerate(hits[depth:], 1)]
        first[question] = first.get(question, []) + rest
    return first


def write_scores(
    run: Run, corpus: Corpus, ranked: Mapping[str, Iterator[Ranked]], ties: Ties | None = None
) -> dict[str, float]:
    """Score and write every method, one block of questions at a time; return METHOD.METRIC. `ties` overrides
    evaluate.ties.
    """
    gold_tables = [corpus.gold(corpus.questions(number)) for number in range(corpus.num_blocks)]
    samples = run.config.evaluate.bootstrap
    metrics: dict[str, Any] = {}
    by_question: dict[str, pa.Table] = {}
    rows = []
    for method, blocks in ranked.items():
        scores = _score_method(run, corpus, method, blocks, gold_tables, ties or run.config.evaluate.ties)
        metrics |= _with_intervals(scores, method, samples)
        columns = {"question_id": scores.questions, "method": [method] * len(scores.questions)}
        by_question[method] = pa.table(columns | {name: scores.values[name] for name in TESTED}).cast(RANKED_SCHEMA)
        means = scores.means()
        rows.append((method, *(f"{100 * means[metric]:.1f}" for metric in SHOWN)))
    with run.folder.writing(f"ranked/{corpus.name}.qrels") as file:
        for table in gold_tables:
            file.write(trec_gold(gold_lists(table)).encode())
    run.folder.write_bytes(f"ranked/{corpus.name}.parquet", encode_table(pa.concat_tables(by_question.values()), "parquet", {}))
    if samples:
        metrics |= _differences(by_question, samples)
    prefix = f"retrieval.{corpus.name}."
    run.add_metrics({prefix + name: value for name, value in metrics.items()}, instead_of=prefix)
    counts = f"{corpus.num_questions:,} questions, {corpus.num_sentences:,} sentences"
    say_table((f"{corpus.name}: {counts}", *SHOWN), rows)
    return metrics


def _score_method(
    run: Run, corpus: Corpus, method: str, blocks: Iterator[Ranked], gold_tables: list[pa.Table], ties: Ties
) -> RetrievalScores:
    """Score a method's lists and write them in TREC format."""
    parts = []
    with run.folder.writing(f"ranked/{corpus.name}.{method}.trec") as file:
        for lists, table in zip(blocks, gold_tables, strict=True):
            gold = gold_lists(table)
            parts.append(score_run(lists, gold, ties=ties))
            file.write(trec_run(lists, ties=ties, gold=gold).encode())
    return join_scores(parts)


def gold_lists(table: pa.Table) -> dict[str, dict[str, int]]:
    """Relevance by question and sentence."""
    return gold_of(*(table[name].to_pylist() for name in ("question_id", "sentence_id", "relevance")))


def mean_mrr(corpus: Corpus, blocks: Iterator[Ranked]) -> float:
    """MRR@100 of ranked lists, block by block."""
    golds = (gold_lists(corpus.gold(corpus.questions(number))) for number in range(corpus.num_blocks))
    parts = [score_run(lists, gold) for lists, gold in zip(blocks, golds, strict=True)]
    return join_scores(parts).means()["MRR@100"]


def _with_intervals(scores: RetrievalScores, name: str, samples: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for metric, value in scores.means().items():
        metrics[f"{name}.{metric}"] = round(value, 6)
        if samples and metric in TESTED:
            interval = bootstrap_interval(scores.values[metric], samples=samples)
            metrics |= {f"{name}.{metric}.low": round(interval.low, 6), f"{name}.{metric}.high": round(interval.high, 6)}
    return metrics


def _differences(by_question: Mapping[str, pa.Table], samples: int) -> dict[str, float]:
    """Differences between methods, paired over questions, with interval and p."""
    pairs = [(method, "gold") for method in by_question if method != "gold"] + COMPARED
    metrics: dict[str, float] = {}
    for method, other in pairs:
        if method not in by_question or other not in by_question:
            continue
        for metric in TESTED:
            before, after = (
                dict(zip(by_question[of]["question_id"].to_pylist(), by_question[of][metric].to_pylist()))
                for of in (other, method)
            )
            test = paired_bootstrap(before, after, samples=samples)
            key = f"{method}.{metric}.minus_{other}"
            metrics |= {key: round(test.difference, 6), f"{key}.p": round(test.p_value, 6)}
            metrics |= {f"{key}.low": round(test.low, 6), f"{key}.high": round(test.high, 6)}
    return metrics
