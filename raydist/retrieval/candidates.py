"""Candidates for the cross-encoder: BM25 and dense results merged, gold answers removed (docs/methods.md 5.4).

A function of one block of questions: the candidates of a question do not depend on the other questions of its block, on
the order of any table, or on rows about questions of other blocks, which are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.corpus.sentence_table import SentenceTable
from raydist.draws import keyed_uniform, text_hash
from raydist.errors import InputError
from raydist.records import CANDIDATE_SCHEMA, HIT_SCHEMA

PAIR = ["question_id", "sentence_id"]
Ranked = dict[str, list[tuple[str, float]]]  # (sentence, score) by question, of one block


def hit_table(
    question_ids: Sequence[str], rows_QK: np.ndarray, scores_QK: np.ndarray, ids: Callable[[np.ndarray], pa.Array | list[str]]
) -> pa.Table:
    """Search results, best first, as rows of ``HIT_SCHEMA``; row -1 is no hit, ``ids`` maps the others to sentence ids."""
    question, place = np.nonzero(rows_QK >= 0)
    columns = [
        pa.array(question_ids, pa.string()).take(pa.array(question)),
        pa.array(ids(rows_QK[question, place])).cast(pa.string()),
        pa.array(place + 1, pa.int32()),
        pa.array(scores_QK[question, place], pa.float32()),
    ]
    return pa.table(columns, schema=HIT_SCHEMA)


def ranked_lists(table: pa.Table, by: str = "score") -> Ranked:
    """A table of hits as ranked lists."""
    lists: Ranked = {}
    for question, sentence, value in zip(*(table[name].to_pylist() for name in ("question_id", "sentence_id", by))):
        lists.setdefault(question, []).append((sentence, value))
    return lists


def find_candidates(
    questions: pa.Table,
    gold: pa.Table,
    bm25: pa.Table,
    dense: pa.Table,
    sentences: SentenceTable,
    *,
    top: int = 10,
    same_doc: int = 0,
    seed: int = 0,
    near_duplicates: bool = False,
    known: Mapping[str, Sequence[int]] | None = None,
) -> pa.Table:
    """The best ``top`` of both retrievers for each question, by question id and sentence id, as ``CANDIDATE_SCHEMA``.

    Gold answers and sentences with the text of one are left out, with ``near_duplicates`` also those with its words in
    another order. ``same_doc`` adds that many other sentences of each gold answer's document, drawn by the seed. ``known``:
    bag keys of all answers to a question's text under any id (``positives``), left out as well.
    """
    asked = pc.unique(questions["question_id"])
    gold = of_questions(gold, asked)
    gold_rows = sentences.rows_of(gold["sentence_id"], "the gold sentence")
    found = pa.concat_tables(
        [
            _columns(best_hits(bm25, asked, top, "bm25"), "bm25"),
            _columns(best_hits(dense, asked, top, "dense"), "dense"),
            _same_document(gold, gold_rows, sentences, same_doc, seed, near_duplicates, known or {}),
        ],
        promote_options="default",
    )
    merged = found.group_by(PAIR, use_threads=False).aggregate(
        [(f"{source}_{what}", how) for source in ("bm25", "dense") for what, how in (("rank", "min"), ("score", "max"))]
        + [("same_doc", "any")]
    )
    merged = merged.rename_columns([re.sub("_(min|max|any)$", "", name) for name in merged.column_names])

    keys = sentences.bag_keys if near_duplicates else sentences.text_keys
    rows = sentences.rows_of(merged["sentence_id"], "the candidate")
    is_gold = _pairs_in(merged["question_id"], keys[rows], gold["question_id"], keys[gold_rows])
    if known:
        pairs = zip(merged["question_id"].to_pylist(), sentences.bag_keys[rows].tolist())
        is_gold |= np.fromiter((bag in known.get(question, ()) for question, bag in pairs), bool, merged.num_rows)
    kept = merged.filter(pa.array(~is_gold)).select(CANDIDATE_SCHEMA.names).cast(CANDIDATE_SCHEMA)
    return kept.sort_by([(name, "ascending") for name in PAIR])


def of_questions(table: pa.Table, asked: pa.Array) -> pa.Table:
    """The rows about the given questions, in an order that does not depend on the table's; judgements only above 0."""
    mine = pc.is_in(table["question_id"], value_set=asked.cast(table["question_id"].type))
    if "relevance" in table.column_names:
        mine = pc.and_(mine, pc.greater(table["relevance"], 0))
    order = [(name, "ascending") for name in ("question_id", "rank", "sentence_id") if name in table.column_names]
    return table.filter(mine).sort_by(order)


def best_hits(hits: pa.Table, asked: pa.Array, top: int, name: str) -> pa.Table:
    """The hits of the given questions down to rank ``top``, by question and rank."""
    hits = of_questions(hits.select(HIT_SCHEMA.names).cast(HIT_SCHEMA), asked)
    hits = hits.filter(pc.less_equal(hits["rank"], top))
    bad = hits.filter(pc.invert(pc.is_finite(hits["score"])))
    if bad.num_rows:
        raise InputError(
            f"{bad.num_rows} {name} scores are not finite, the first for question {bad['question_id'][0].as_py()!r} and "
            f"sentence {bad['sentence_id'][0].as_py()!r}; search again with an encoder that gives numbers"
        )
    return hits


def _columns(hits: pa.Table, source: str) -> pa.Table:
    """The hits of one source under its own column names."""
    named = hits.rename_columns({"rank": f"{source}_rank", "score": f"{source}_score"})
    return named.append_column("same_doc", pa.array(np.zeros(hits.num_rows, bool)))


def _same_document(
    gold: pa.Table,
    gold_rows: np.ndarray,
    sentences: SentenceTable,
    most: int,
    seed: int,
    near_duplicates: bool,
    known: Mapping[str, Sequence[int]],
) -> pa.Table:
    """Up to ``most`` sentences from the document of each gold answer, drawn uniformly.

    As with negatives (methods 5.2), gold answers of the question and duplicates of their texts are removed before drawing.
    A sentence's draw is a pure function of (seed, question id, sentence id).
    """
    questions = gold["question_id"].to_pylist()
    refused: dict[str, set[int]] = {}
    for question, row in zip(questions, gold_rows.tolist() if most else []):
        refused.setdefault(question, set()).update(sentences.duplicates(row, near_duplicates).tolist())
    for question, of_question in refused.items():
        of_question.update(same for key in known.get(question, ()) for same in sentences.with_words(key).tolist())
    pairs, drawn = [], [np.zeros(0, np.int64)]
    for place, row in enumerate(gold_rows.tolist() if most else []):
        question = questions[place]
        left = np.array([other for other in sentences.document_rows(row).tolist() if other not in refused[question]], np.int64)
        keys = np.array([text_hash(f"{question}\0{id}") for id in sentences.ids(left).to_pylist()], np.int64)
        chosen = left[np.argsort(keyed_uniform(seed, 0, "same document", keys), kind="stable")[:most]]
        pairs += [place] * len(chosen)
        drawn.append(chosen)
    columns = {
        "question_id": gold["question_id"].cast(pa.string()).take(pa.array(pairs, pa.int64())),
        "sentence_id": sentences.ids(np.concatenate(drawn)).cast(pa.string()),
        "same_doc": pa.array(np.ones(len(pairs), bool)),
    }
    return pa.table(columns)


def _pairs_in(questions: pa.ChunkedArray, keys: np.ndarray, in_questions: pa.ChunkedArray, in_keys: np.ndarray) -> np.ndarray:
    """A mask of the (question, key) pairs that are among the others."""
    known = set(zip(in_questions.to_pylist(), in_keys.tolist()))
    return np.fromiter((pair in known for pair in zip(questions.to_pylist(), keys.tolist())), bool, len(keys))
