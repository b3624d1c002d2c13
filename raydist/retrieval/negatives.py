"""Training pairs of the cross-encoder: gold answers, and negatives from three sources (docs/methods.md 5.2).

Each gold pair gives one positive and, from each source, ``negatives_per_source`` sentences:

    bm25        uniform over the best 10 by BM25
    dense       uniform over the best 10 by a dense retriever
    same_doc    uniform over the document of the gold answer

A pair that somebody judged wrong (``corpus.judgements``) is a negative beside them, of the source ``judged``.

Removed before drawing: gold answers of the question, under any id with the same text, duplicates of their texts, and earlier
draws for the question: no negative comes twice (the paper leaves this open; a repeated one would count double). An exhausted
source falls back to bm25, and bm25 to the whole corpus, the pool; the row has both names.

A draw is a pure function of (seed, question id, source asked, source used, number). Rows are the same for any cut of the
questions into blocks, for any order of the tables, on any number of workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby, product, repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.corpus.sentence_table import SentenceTable
from raydist.draws import keyed_uniform, text_hash
from raydist.errors import InputError
from raydist.records import LABELLED_PAIR_SCHEMA
from raydist.retrieval.candidates import best_hits, of_questions

SOURCES = ("bm25", "dense", "same_doc")
JUDGED = "judged"  # wrong, by somebody who looked
FROM = {"bm25": "from BM25", "dense": "from the dense retriever", "same_doc": "of the same document", "pool": "from the corpus"}

Ranked = list[tuple[int, int | None]]  # rows of the sentence table, with their ranks


def is_dev_question(question_ids: Sequence[str], share: float = 0.1) -> np.ndarray:
    """A mask of the held-out questions, by a hash of their ids: the same ones in every run, with any seed."""
    return keyed_uniform(0, 0, "dev question", question_keys(question_ids)) < share


def question_keys(question_ids: Iterable[str]) -> np.ndarray:
    """Keys for the draws of each question."""
    return np.array([text_hash(id) for id in question_ids], np.int64)


def draw_negatives(
    questions: pa.Table,
    gold: pa.Table,
    bm25: pa.Table,
    dense: pa.Table,
    sentences: SentenceTable,
    *,
    seed: int,
    negatives_per_source: int = 1,
    top: int = 10,
    dev_share: float = 0.1,
    near_duplicates: bool = True,
    known: Mapping[str, Sequence[int]] | None = None,
    wrong: pa.Table | None = None,
) -> pa.Table:
    """The labelled pairs of a block of questions, by question id: each gold answer, then its negatives.

    ``near_duplicates`` also excludes sentences with the words of a gold answer in another order. ``known``: bag keys of all
    answers to a question's text under any id (``positives``), never drawn as negatives. ``wrong``: pairs {question_id,
    sentence_id} that were judged wrong, which are negatives unless they have the words of an answer. Rows of ``gold``,
    ``bm25`` and ``dense`` (``HIT_SCHEMA``) about other questions are skipped.
    """
    asked = pc.unique(questions["question_id"])
    ids = sorted(asked.to_pylist())
    gold = of_questions(gold, asked)
    gold_rows = _by_question(gold, sentences.rows_of(gold["sentence_id"], "the gold sentence"))
    found = {}
    for name, hits in (("bm25", bm25), ("dense", dense)):
        best = best_hits(hits, asked, top, name)
        found[name] = _by_question(best, sentences.rows_of(best["sentence_id"], f"the {name} hit"))
    judged = _by_question(wrong, sentences.rows_of(wrong["sentence_id"], "the judged sentence")) if wrong is not None else {}
    is_dev = is_dev_question(ids, dev_share)
    keys = question_keys(ids)

    @cache
    def uniform(wanted: str, source: str, number: int) -> np.ndarray:
        return keyed_uniform(seed, number, f"negative {wanted} {source}", keys)

    rows: list[tuple] = []
    for place, question in enumerate(ids):
        answers = [row for row, _ in gold_rows.get(question, ())]
        if not answers:
            raise InputError(f"question {question!r} has no gold sentence; leave it out or give it one")
        refused = {same for row in answers for same in sentences.duplicates(row, near_duplicates).tolist()}
        refused.update(same for key in (known or {}).get(question, ()) for same in sentences.with_words(key).tolist())
        for number, row in enumerate(row for row, _ in judged.get(question, ()) if row not in refused):
            rows.append((question, row, 0, JUDGED, JUDGED, number, None, is_dev[place]))
        refused.update(
            same for row, _ in judged.get(question, ()) for same in sentences.duplicates(row, near_duplicates).tolist()
        )
        for pair, answer in enumerate(answers):
            rows.append((question, answer, 1, "gold", "gold", pair, None, is_dev[place]))
            document: Ranked = [(row, None) for row in sentences.document_rows(answer).tolist()]
            ranked = {name: hits.get(question, []) for name, hits in found.items()} | {"same_doc": document}
            numbers = range(pair * negatives_per_source, (pair + 1) * negatives_per_source)
            for wanted, number in product(SOURCES, numbers):
                drawn = {source: uniform(wanted, source, number)[place] for source in (wanted, "bm25", "pool")}
                picked = _draw(wanted, drawn, ranked, refused, len(sentences))
                if picked is None:
                    raise InputError(
                        f"question {question!r} finds no negative: all {len(sentences):,} sentences of the corpus are its gold "
                        f"answers or taken already; take a larger corpus or fewer negatives_per_source "
                        f"(now {negatives_per_source})"
                    )
                source, row, rank = picked
                refused.update(sentences.duplicates(row, near_duplicates).tolist())
                rows.append((question, row, 0, wanted, source, number, rank, is_dev[place]))
    columns = dict(zip(LABELLED_PAIR_SCHEMA.names, zip(*rows) if rows else repeat(())))
    columns["sentence_id"] = sentences.ids(np.array(columns["sentence_id"], np.int64)).cast(pa.string())
    return pa.table([pa.array(columns[field.name], field.type) for field in LABELLED_PAIR_SCHEMA], schema=LABELLED_PAIR_SCHEMA)


def _draw(
    wanted: str, drawn: Mapping[str, float], ranked: Mapping[str, Ranked], refused: set[int], num_rows: int
) -> tuple[str, int, int | None] | None:
    """The source, row and rank of a negative, by a number in [0, 1) for each source; None if the corpus has no row left."""
    for source in dict.fromkeys((wanted, "bm25")):
        left = [hit for hit in ranked[source] if hit[0] not in refused]
        if left:
            row, rank = left[int(drawn[source] * len(left))]
            return source, row, rank
    if len(refused) >= num_rows:
        return None
    row = int(drawn["pool"] * (num_rows - len(refused)))  # counts the remaining rows without listing them
    for other in sorted(refused):
        row += other <= row
    return "pool", row, None


def count_sources(tables: Iterable[pa.Table]) -> dict[tuple[str, str], int]:
    """Counts of negatives in labelled pairs by (source asked, source used), in order."""
    counts: Counter[tuple[str, str]] = Counter()
    for pairs in tables:
        counts.update(zip(pairs["asked"].to_pylist(), pairs["source"].to_pylist()))
    order = (*SOURCES, "pool", JUDGED)
    return {key: counts[key] for key in product((*SOURCES, JUDGED), order) if counts[key]}


def fallbacks(counts: Mapping[tuple[str, str], int]) -> str:
    """A description of the negatives drawn from another source than asked; empty if there are none."""
    total: Counter[str] = Counter()
    for (asked, _), number in counts.items():
        total[asked] += number
    return "; ".join(
        f"no sentence {FROM[asked]} for {number:,} of {total[asked]:,} negatives, drawn {FROM[source]} instead"
        for (asked, source), number in counts.items()
        if asked != source
    )


def _by_question(table: pa.Table, rows: np.ndarray) -> dict[str, Ranked]:
    """Rows and ranks of each question of a table sorted by question."""
    ranks = table["rank"].to_pylist() if "rank" in table.column_names else [None] * table.num_rows
    listed = zip(table["question_id"].to_pylist(), rows.tolist(), ranks)
    return {question: [(row, rank) for _, row, rank in found] for question, found in groupby(listed, lambda hit: hit[0])}
