"""P@N, MRR, recall and nDCG of ranked lists (methods 2.5), with settled ties, and TREC files for checks with other tools.

``P@N`` is the share of questions with at least one gold sentence among the first N (a hit rate); ``MRR@100`` the mean of
1 / rank of the first gold sentence, 0 beyond rank 100; ``recall@k`` the mean share of a question's gold sentences among
the first k; ``nDCG@10`` has the relevance as gain and log2(rank + 1) as discount, over the best possible order.

Means go over all questions that have gold; a question missing from the run counts 0. All values are from 0 to 1.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import quote, unquote

import numpy as np

from raydist.errors import InputError
from raydist.files.given import check_regular

Ties = Literal["id", "pessimistic", "trec"]
Run = Mapping[str, Sequence[tuple[str, float]]]  # question id -> (sentence id, score) in any order
Gold = Mapping[str, Mapping[str, int]]  # question id -> sentence id -> relevance, above 0


@dataclass(frozen=True, slots=True)
class RetrievalScores:
    """One array per metric with a value for each question, in the order of ``questions``."""

    questions: list[str]
    values: dict[str, np.ndarray]

    def means(self) -> dict[str, float]:
        """The figures of a results table, such as ``P@1`` and ``MRR@100``."""
        return {name: float(values.mean()) for name, values in self.values.items()}


def rank_candidates(
    candidates: Sequence[tuple[str, float]], ties: Ties = "id", gold: Mapping[str, int] | None = None
) -> list[tuple[str, float]]:
    """Best first; ties by id, ``pessimistic``: with gold last among equals, ``trec``: as in trec_eval."""
    if ties not in get_args(Ties):
        raise InputError(f"unknown ties {ties!r}; take one of {', '.join(get_args(Ties))}")
    if ties == "trec":  # scores are float32 there, and of equal ones the larger id comes first
        return sorted(candidates, key=lambda candidate: (np.float32(candidate[1]), candidate[0]), reverse=True)
    late = (gold or {}) if ties == "pessimistic" else {}
    return sorted(candidates, key=lambda candidate: (-candidate[1], candidate[0] in late, candidate[0]))


def score_run(
    run: Run,
    gold: Gold,
    *,
    ties: Ties = "id",
    hits_at: Sequence[int] = (1, 5, 10),
    recall_at: Sequence[int] = (10, 100),
    mrr_at: int = 100,
    ndcg_at: int = 10,
) -> RetrievalScores:
    """Score each question of ``gold`` by its ranked candidates."""
    if not gold:
        raise InputError("no question has a gold sentence: there is nothing to score")
    unknown = [question for question in run if question not in gold]
    if unknown:
        raise InputError(f"{len(unknown)} questions of the run have no gold sentence, {unknown[0]!r} for one; leave them out")
    depth = max(*hits_at, *recall_at, mrr_at, ndcg_at)
    questions = list(gold)
    gains_QK = np.zeros((len(questions), depth))
    ideal_QK = np.zeros((len(questions), ndcg_at))
    num_gold_Q = np.zeros(len(questions))
    for row, question in enumerate(questions):
        relevance = _relevant(gold[question])
        if not relevance:
            raise InputError(f"question {question!r} has no gold sentence; leave it out or give it one")
        candidates = run.get(question, ())
        scores = [score for _, score in candidates]
        if not np.isfinite(scores).all():
            raise InputError(f"question {question!r} has a score that is not finite; mend the scores first")
        if len({id for id, _ in candidates}) != len(candidates):
            raise InputError(f"question {question!r} lists the same sentence more than once; give each once")
        ranked = rank_candidates(candidates, ties, relevance)[:depth]
        gains_QK[row, : len(ranked)] = [relevance.get(id, 0) for id, _ in ranked]
        best = sorted(relevance.values(), reverse=True)[:ndcg_at]
        ideal_QK[row, : len(best)] = best
        num_gold_Q[row] = len(relevance)

    is_gold_QK = gains_QK > 0
    first_Q = np.where(is_gold_QK[:, :mrr_at].any(1), is_gold_QK[:, :mrr_at].argmax(1) + 1, np.inf)
    discount_K = 1 / np.log2(np.arange(2, ndcg_at + 2))
    values = {f"P@{n}": is_gold_QK[:, :n].any(1).astype(float) for n in hits_at}
    values[f"MRR@{mrr_at}"] = 1 / first_Q
    values |= {f"recall@{k}": is_gold_QK[:, :k].sum(1) / num_gold_Q for k in recall_at}
    gain_Q, best_Q = ((gains * discount_K).sum(1) for gains in (gains_QK[:, :ndcg_at], ideal_QK))  # each row on its own
    values[f"nDCG@{ndcg_at}"] = gain_Q / best_Q
    return RetrievalScores(questions, values)


def retrieval_scores(
    ranked: Mapping[str, Sequence[str] | Sequence[tuple[str, float]]],
    gold: Mapping[str, str | Iterable[str] | Mapping[str, int]],
    *,
    ties: Ties = "id",
) -> dict[str, float]:
    """P@1, P@5, P@10, MRR@100, recall@10, recall@100 and nDCG@10, from 0 to 1, over all questions that have gold.

    >>> import raydist
    >>> scores = raydist.retrieval_scores({"q1": ["s3", "s1"], "q2": []}, {"q1": "s1", "q2": ["s2"]})
    >>> scores["P@1"], scores["P@5"], scores["MRR@100"]
    (0.0, 0.5, 0.25)

    A list holds sentence ids, best first, or (id, score) pairs in any order, whose ``ties`` are settled by id or,
    if pessimistic, with gold last. Gold is an id, several ids, or a relevance for each.
    """
    run = {question: _with_scores(candidates) for question, candidates in ranked.items()}
    return score_run(run, {question: _with_relevance(ids) for question, ids in gold.items()}, ties=ties).means()


def _with_scores(candidates: Sequence[str | tuple[str, float]]) -> list[tuple[str, float]]:
    """Ordered ids get descending scores."""
    return [(each, -float(rank)) if isinstance(each, str) else each for rank, each in enumerate(candidates)]


def _with_relevance(ids: str | Iterable[str] | Mapping[str, int]) -> Mapping[str, int]:
    if isinstance(ids, Mapping):
        return ids
    return dict.fromkeys([ids] if isinstance(ids, str) else ids, 1)


def join_scores(parts: Sequence[RetrievalScores]) -> RetrievalScores:
    """The scores of several blocks of questions as one."""
    names = parts[0].values if parts else {}
    return RetrievalScores(
        [question for part in parts for question in part.questions],
        {name: np.concatenate([part.values[name] for part in parts]) for name in names},
    )


def _relevant(judged: Mapping[str, int]) -> dict[str, int]:
    return {id: value for id, value in judged.items() if value > 0}


def gold_of(question_ids: Iterable[str], sentence_ids: Iterable[str], relevance: Iterable[int]) -> dict[str, dict[str, int]]:
    """Gold by question, from the three columns of a gold table."""
    gold: dict[str, dict[str, int]] = {}
    for question, sentence, value in zip(question_ids, sentence_ids, relevance):
        gold.setdefault(question, {})[sentence] = value
    return gold


# ----------------------------------------------------------------------------------------------------------- TREC files

RUN_LINE = "question Q0 sentence rank score tag"


def trec_run(run: Run, *, ties: Ties = "id", gold: Gold | None = None, tag: str = "raydist") -> str:
    """Lines of ``question Q0 sentence rank score tag``, best first, in the order of scoring, so that every tool sees the same.

    ``gold`` is needed if it settles ties. trec_eval keeps scores in float32, ignores ranks and has its own rule for ties;
    hence a score that is not below its predecessor is lowered to the next float32. Blanks in ids are written as %20, as in
    a URL.
    """
    lines = []
    for question, candidates in run.items():
        before = np.float32(np.inf)
        judged = _relevant((gold or {}).get(question, {}))
        for rank, (sentence, score) in enumerate(rank_candidates(candidates, ties, judged), 1):
            before = min(np.float32(score), np.nextafter(before, np.float32(-np.inf)))
            lines.append(f"{_quote(question)} Q0 {_quote(sentence)} {rank} {before:.9g} {tag}\n")
    return "".join(lines)


def read_trec_run(path: Path) -> dict[str, list[tuple[str, float]]]:
    """A run by question, from a file that may be gzipped; ranks and tag are ignored."""
    run: dict[str, dict[str, float]] = {}
    for number, (question, _, sentence, _, score, _) in _run_lines(Path(path)):
        listed = run.setdefault(unquote(question), {})
        if unquote(sentence) in listed:
            raise InputError(f"{path}, line {number}: {sentence!r} comes again in the list of {question!r}; give each id once")
        listed[unquote(sentence)] = float(score)
    return {question: list(listed.items()) for question, listed in run.items()}


def trec_gold(gold: Gold) -> str:
    """Lines of ``question 0 sentence relevance``."""
    rows = ((question, sentence, value) for question, judged in gold.items() for sentence, value in judged.items())
    return "".join(f"{_quote(question)} 0 {_quote(sentence)} {value}\n" for question, sentence, value in rows)


def _quote(id: str) -> str:
    return "".join(quote(c) if c == "%" or c.isspace() else c for c in id)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _run_lines(path: Path) -> Iterable[tuple[int, list[str]]]:
    """Line numbers and cells."""
    check_regular(path)
    if not os.path.isfile(path):
        raise InputError(f"no file {path}; wanted lines of: {RUN_LINE}")
    for number, line in enumerate(_text(path).split("\n"), 1):
        cells = line.split()
        if cells and (len(cells) != len(RUN_LINE.split()) or not _is_number(cells[4])):
            raise InputError(f"{path}, line {number}: wanted {RUN_LINE}, saw {line[:100]!r}")
        if cells:
            yield number, cells


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (EOFError, OSError, zlib.error):
        raise InputError(f"{path} is a truncated or damaged gzip file; copy or download it again") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); wanted lines of: {RUN_LINE}") from None
