"""Scored candidates -> silver pairs: threshold and weight; rejected pairs stay, marked as such (docs/methods.md 5.4, 5.5).

Scores arrive final. Threshold, power, weighting and calibration change the selection and its weights without another model
call. All functions but ``yield_curve`` and ``write_selection``, which go over any number of blocks, work on one block of
whole questions; the concatenated results do not depend on the cut into blocks.
Of sentences with the same words, in any order, a question keeps one: copies in a corpus would count it several times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import IO, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.corpus.sentence_table import SentenceTable
from raydist.draws import keyed_uniform, text_hash
from raydist.errors import InputError
from raydist.records import MINED_EXAMPLE_SCHEMA, SCORED_SCHEMA, SILVER_SCHEMA, TRAINING_PAIR_SCHEMA
from raydist.retrieval.candidates import of_questions
from raydist.retrieval.cross_encoder import sigmoid

Weighting = Literal["power", "none", "binary"]
Answers = Set[tuple[str, str]]  # (question, sentence): all right pairs beside gold

BELOW = "p below the threshold"
COPY = "same words as a kept pair"
JUDGED = "judged wrong"
THRESHOLDS = tuple(round(step / 50, 2) for step in range(51))  # of a yield curve
EXAMPLES = 20  # kept pairs in a report, and as many rejected ones
BY_PAIR = [("question_id", "ascending"), ("sentence_id", "ascending")]


def select_silver(
    scored: pa.Table,
    *,
    sentences: SentenceTable | None = None,
    threshold: float = 0.5,
    power: float = 2.0,
    weighting: Weighting = "power",
    temperature: float | None = None,
    shift: float = 0.0,
    wrong: pa.Table | None = None,
) -> pa.Table:
    """Every scored candidate as ``SILVER_SCHEMA``: kept where ``p >= threshold``, with its weight, else with the reason.

    Weights of kept pairs: ``power`` p^power (Eq. 2), ``none`` 1, ``binary`` 1 where p >= 0.5 and 0 below, which differs
    from ``none`` only under a threshold below 0.5. With a temperature p is recomputed from the logit (less ``shift``), else it
    is as scored.
    With ``sentences`` a question keeps one of those with the same words: the highest p, then the smallest id.
    Pairs with the words of one that was judged wrong (``wrong``: {question_id, sentence_id}) are never kept.
    A selection can be selected from again.
    """
    if weighting not in get_args(Weighting):
        raise InputError(f"unknown weighting {weighting!r}; take one of {', '.join(get_args(Weighting))}")
    if not 0 <= threshold <= 1 or not power >= 0 or not (temperature is None or temperature > 0) or not np.isfinite(shift):
        raise InputError(
            f"wanted a threshold from 0 to 1, a power of 0 or more, a temperature above 0 and a finite shift, got {threshold}, "
            f"{power}, {temperature} and {shift}"
        )
    scored = scored.select(SCORED_SCHEMA.names).cast(SCORED_SCHEMA).sort_by(BY_PAIR)
    _check_scores(scored)
    if temperature is not None:
        p = pa.array(sigmoid(scored["logit"].to_numpy(), temperature, shift), pa.float32())
        scored = scored.set_column(SCORED_SCHEMA.get_field_index("p"), SCORED_SCHEMA.field("p"), p)
    # at stored precision, so that a selection read from disk is the same
    p = scored["p"].to_numpy().astype(np.float64)
    is_copy, is_wrong = _copies(scored, sentences), _judged_wrong(scored, wrong, sentences)
    kept = (p >= threshold) & ~is_copy & ~is_wrong
    reason = pc.if_else(pa.array(is_wrong), JUDGED, pc.if_else(pa.array((p >= threshold) & is_copy), COPY, BELOW))
    weight = {"power": p**power, "none": np.ones_like(p), "binary": (p >= 0.5).astype(float)}[weighting]
    columns = [
        *scored.columns,
        _sources(scored),
        pa.array(kept),
        pc.if_else(pa.array(kept), pa.scalar(None, pa.string()), reason),
        pa.array(np.where(kept, weight, 0.0), pa.float32()),
    ]
    return pa.table(columns, schema=SILVER_SCHEMA)


def _check_scores(scored: pa.Table) -> None:
    p, logit = (scored[name].to_numpy().astype(float) for name in ("p", "logit"))  # null becomes NaN
    bad = ~(np.isfinite(logit) & (p >= 0) & (p <= 1))
    if bad.any():
        first = scored.slice(int(bad.argmax()), 1).to_pylist()[0]
        raise InputError(
            f"{bad.sum()} of {len(bad)} scores are no probabilities, the first for question {first['question_id']!r} and "
            f"sentence {first['sentence_id']!r}: logit {first['logit']}, p {first['p']}; mend the cross-encoder and score again"
        )
    models = pc.unique(scored["cross_encoder"]).to_pylist()
    if len(models) > 1:
        raise InputError(f"scores of {len(models)} cross-encoders are mixed ({', '.join(map(str, models))}); take those of one")


def _copies(scored: pa.Table, sentences: SentenceTable | None) -> np.ndarray:
    """A mask of pairs whose words an earlier pair of the same question has, ordered by p, then by sentence id.

    The earlier pair is kept whenever a copy could be, so the threshold does not matter here.
    """
    copies = np.zeros(scored.num_rows, bool)
    if sentences is None or not scored.num_rows:
        return copies
    words = sentences.bag_keys[sentences.rows_of(scored["sentence_id"], "the candidate")]
    question = scored["question_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    by_id = np.argsort(pc.array_sort_indices(scored["sentence_id"].combine_chunks()).to_numpy())
    order = np.lexsort((by_id, -scored["p"].to_numpy(), words, question))
    question, words = question[order], words[order]
    copies[order[1:]] = (question[1:] == question[:-1]) & (words[1:] == words[:-1])
    return copies


def _judged_wrong(scored: pa.Table, wrong: pa.Table | None, sentences: SentenceTable | None) -> np.ndarray:
    """A mask of pairs that were judged wrong or, with ``sentences``, have the words of such a pair."""
    if wrong is None or not wrong.num_rows:
        return np.zeros(scored.num_rows, bool)

    def named(pairs: pa.Table) -> list[tuple[str, Any]]:
        if sentences is None:
            return list(_pairs(pairs))
        words = sentences.bag_keys[sentences.rows_of(pairs["sentence_id"], "the judged sentence")].tolist()
        return list(zip(pairs["question_id"].to_pylist(), words))

    judged = set(named(wrong))
    return np.array([pair in judged for pair in named(scored)], bool)


def _sources(scored: pa.Table) -> pa.Array:
    found = {
        "bm25": pc.is_valid(scored["bm25_rank"]).to_pylist(),
        "dense": pc.is_valid(scored["dense_rank"]).to_pylist(),
        "same_doc": scored["same_doc"].to_pylist(),
    }
    lists = [[name for name, has in zip(found, flags) if has] for flags in zip(*found.values())]
    return pa.array(lists, SILVER_SCHEMA.field("sources").type)


def yield_curve(
    scored: Iterable[pa.Table],
    num_gold: int,
    *,
    sentences: SentenceTable | None = None,
    threshold: float | None = None,
    temperature: float | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> dict:
    """Pairs kept at each threshold, and their share of the gold pairs: the content of ``mining/yield.json``.

    Goes over any number of blocks; ``threshold`` is the one in force, if any. Blocks may split a question, but not with
    ``sentences``, which excludes copies as in ``select_silver``.
    """
    asked = np.unique([*thresholds, *([] if threshold is None else [threshold])])
    pairs, candidates = np.zeros(len(asked), np.int64), 0
    for block in scored:
        _check_scores(block)
        p = block["p"].to_numpy()
        if temperature is not None:
            p = sigmoid(block["logit"].to_numpy(), temperature).astype(np.float32)
        p = np.sort(p[~(_copies(block, sentences) | _is_judged(block))].astype(np.float64))
        pairs += len(p) - np.searchsorted(p, asked)
        candidates += block.num_rows
    points = [
        {"threshold": float(at), "pairs": int(count), "share_of_gold": int(count) / max(1, num_gold)}
        for at, count in zip(asked, pairs)
    ]
    return {"gold": num_gold, "candidates": candidates, "threshold": threshold, "points": points}


def _is_judged(block: pa.Table) -> np.ndarray:
    """A mask of rows that a selection left out as judged wrong."""
    if "why_not" not in block.column_names:
        return np.zeros(block.num_rows, bool)
    return pc.fill_null(pc.equal(block["why_not"], JUDGED), False).to_numpy()


class Selection(NamedTuple):
    """Summary of a selection."""

    curve: dict  # yield_curve
    examples: pa.Table  # choose_examples
    kept: int
    right: int  # kept pairs that are right, if known


def write_selection(
    file: IO[bytes],
    silver: Iterable[pa.Table],
    num_gold: int,
    *,
    sentences: SentenceTable | None = None,
    threshold: float,
    seed: int,
    schema: pa.Schema = SILVER_SCHEMA,
) -> Selection:
    """Stream all blocks of a selection into one Parquet file; return the summary."""
    chosen, kept, right = schema.empty_table(), 0, 0

    def written(to: pq.ParquetWriter) -> Iterator[pa.Table]:
        nonlocal chosen, kept, right
        for block in silver:
            to.write_table(block.cast(schema))
            chosen = choose_examples(pa.concat_tables([chosen, block.cast(schema)]), seed=seed)
            kept += pc.sum(block["kept"]).as_py() or 0
            if "right" in schema.names:
                right += pc.sum(pc.and_(block["kept"], pc.fill_null(block["right"], False))).as_py() or 0
            yield block

    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        curve = yield_curve(written(writer), num_gold, sentences=sentences, threshold=threshold)
    return Selection(curve, chosen, kept, right)


def training_pairs(
    gold: pa.Table,
    silver: pa.Table,
    sentences: SentenceTable,
    *,
    hard_negatives: int = 0,
    negative_p: float = 0.1,
    gold_scored: pa.Table | None = None,
    known: Mapping[str, Sequence[int]] | None = None,
    wrong: pa.Table | None = None,
) -> pa.Table:
    """The training pairs of the dual encoder, by question and sentence: gold with weight 1, kept silver with its own.

    ``hard_negatives`` gives every pair up to that many rejected candidates of its question with p of at most ``negative_p``,
    in the order of their better rank: found early, yet no answer. As with the cross-encoder's negatives (methods 5.2), none
    has the words of an answer of the question, gold or kept, in any order, or those of another negative.
    ``known``: bag keys of all answers to a question's text under any id (``positives``), never used as negatives.
    ``wrong``: pairs {question_id, sentence_id} that were judged wrong; all are negatives, before any other and whatever their
    p, but for a loss that needs logits (``gold_scored``) only those that are candidates, which have one.
    ``gold_scored`` has the cross-encoder's logits of gold pairs {question_id, sentence_id, logit}, if a loss needs them.
    A pair that is gold and silver counts as gold.
    """
    rows: dict[tuple[str, str], dict] = {}
    logits: dict[tuple[str, str], float | None] = {}
    if gold_scored is not None:
        columns = (gold_scored[name].to_pylist() for name in ("question_id", "sentence_id", "logit"))
        logits = {(question, sentence): logit for question, sentence, logit in zip(*columns)}
    for pair in _pairs(of_questions(gold, pc.unique(gold["question_id"]))):
        rows[pair] = {"weight": 1.0, "is_gold": True, "logit": logits.get(pair)}
    kept = silver.filter(silver["kept"])
    for pair, weight, logit in zip(_pairs(kept), kept["weight"].to_pylist(), kept["logit"].to_pylist()):
        rows.setdefault(pair, {"weight": weight, "is_gold": False, "logit": logit})
    mined: dict[str, list[tuple[str, float | None]]] = {}
    judged = _judged_negatives(silver, wrong, only_scored=gold_scored is not None)
    if hard_negatives or judged:
        low = _rejected_candidates(silver, negative_p) if hard_negatives else []
        mined = _hard_negatives(judged, low, sorted(rows), sentences, hard_negatives, known or {})
    table = []
    for question, sentence in sorted(rows):
        hard = mined.get(question, [])
        lists = {"negatives": [id for id, _ in hard], "negative_logits": [logit for _, logit in hard]}
        table.append({"question_id": question, "sentence_id": sentence, **rows[question, sentence], **lists})
    return pa.Table.from_pylist(table, TRAINING_PAIR_SCHEMA)


def _pairs(table: pa.Table) -> list[tuple[str, str]]:
    return list(zip(table["question_id"].to_pylist(), table["sentence_id"].to_pylist()))


Hard = tuple[str, str, float | None]  # question, sentence, logit


def _judged_negatives(silver: pa.Table, wrong: pa.Table | None, *, only_scored: bool) -> list[Hard]:
    """Pairs that were judged wrong, with their logits if they are candidates."""
    if wrong is None or not wrong.num_rows:
        return []
    logits = dict(zip(_pairs(silver), silver["logit"].to_pylist()))
    return [(*pair, logits.get(pair)) for pair in _pairs(wrong) if pair in logits or not only_scored]


def _rejected_candidates(silver: pa.Table, negative_p: float) -> list[Hard]:
    """Rejected candidates of low probability, by question, the best found first."""
    low = silver.filter(pc.and_(pc.invert(silver["kept"]), pc.less_equal(silver["p"], pa.scalar(negative_p, pa.float32()))))
    rank = pc.min_element_wise(low["bm25_rank"], low["dense_rank"])  # null, and so last, for those of the same document
    low = low.append_column("rank", rank)
    low = low.sort_by([("question_id", "ascending"), ("rank", "ascending"), ("sentence_id", "ascending")])
    return [(*pair, logit) for pair, logit in zip(_pairs(low), low["logit"].to_pylist())]


def _hard_negatives(
    judged: list[Hard],
    low: list[Hard],
    positives: list[tuple[str, str]],
    sentences: SentenceTable,
    most: int,
    known: Mapping[str, Sequence[int]],
) -> dict[str, list[tuple[str, float | None]]]:
    """(sentence, logit) of each question's hard negatives: all judged ones, then up to ``most`` others."""
    answers = sentences.bag_keys[sentences.rows_of([sentence for _, sentence in positives], "the answer")].tolist()
    refused = {(question, words) for (question, _), words in zip(positives, answers)}
    refused |= {(question, words) for question, of_text in known.items() for words in of_text}
    found: dict[str, list[tuple[str, float | None]]] = {}
    for negatives, limit in ((judged, len(judged)), (low, most)):
        words_of = sentences.bag_keys[sentences.rows_of([sentence for _, sentence, _ in negatives], "the candidate")].tolist()
        taken: Counter[str] = Counter()
        for (question, sentence, logit), words in zip(negatives, words_of):
            if taken[question] < limit and (question, words) not in refused:
                refused.add((question, words))
                taken[question] += 1
                found.setdefault(question, []).append((sentence, logit))
    return found


def choose_examples(silver: pa.Table, *, seed: int, count: int = EXAMPLES) -> pa.Table:
    """Up to ``count`` kept and ``count`` rejected pairs, kept ones first, by a hash of (seed, ids).

    Choosing from each block, then from those choices, gives the same pairs as choosing from all blocks at once.
    """
    keys = np.array([text_hash(f"{question}\0{sentence}") for question, sentence in _pairs(silver)], np.int64)
    drawn = silver.append_column("drawn", pa.array(keyed_uniform(seed, 0, "example", keys)))
    drawn = drawn.sort_by([("kept", "descending"), ("drawn", "ascending"), *BY_PAIR]).drop_columns("drawn")
    kept = int(pc.sum(drawn["kept"]).as_py() or 0)
    return pa.concat_tables([drawn.slice(0, min(kept, count)), drawn.slice(kept, count)])


def with_texts(pairs: pa.Table, questions: pa.Table, sentences: SentenceTable) -> pa.Table:
    """Pairs of ids with the texts of both as columns ``question`` and ``sentence``."""
    places = pc.index_in(pairs["question_id"], value_set=questions["question_id"].combine_chunks().cast(pa.string()))
    if places.null_count:
        unknown = pairs["question_id"].filter(pc.is_null(places))[0].as_py()
        raise InputError(f"question {unknown!r} is not among the questions; give the table that it comes from")
    rows = sentences.rows_of(pairs["sentence_id"], "the sentence")
    pairs = pairs.append_column("question", questions["text"].take(places).cast(pa.string()))
    return pairs.append_column("sentence", sentences.texts(rows).cast(pa.string()))


def mined_table(silver: pa.Table, questions: pa.Table, sentences: SentenceTable, answers: Answers | None = None) -> pa.Table:
    """Silver rows with their texts and, where the answers of all questions are known, whether they are right."""
    right = None if answers is None else [pair in answers for pair in _pairs(silver)]
    rows = with_texts(silver, questions, sentences)
    return rows.append_column("right", pa.array(right, pa.bool_()) if right is not None else pa.nulls(len(rows), pa.bool_()))


def example_table(chosen: pa.Table, gold: pa.Table, sentences: SentenceTable) -> pa.Table:
    """Chosen mined rows with the texts of the gold answers: the content of ``mining/examples.parquet``."""
    judged = of_questions(gold, pc.unique(chosen["question_id"]))
    texts = sentences.texts(sentences.rows_of(judged["sentence_id"], "the gold sentence")).to_pylist()
    answers: dict[str, list[str]] = {}
    for question, text in zip(judged["question_id"].to_pylist(), texts):
        answers.setdefault(question, []).append(text)
    listed = [answers.get(question, []) for question in chosen["question_id"].to_pylist()]
    told = chosen.append_column("gold", pa.array(listed, MINED_EXAMPLE_SCHEMA.field("gold").type))
    return told.select(MINED_EXAMPLE_SCHEMA.names).cast(MINED_EXAMPLE_SCHEMA)
