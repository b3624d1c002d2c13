"""Scores of the whole chain on questions with known answers, and the step that loses each answer (docs/asking.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.asking.asker import Gathered, Reply
from raydist.asking.calibration import expected_calibration_error
from raydist.asking.questions import Question
from raydist.reader.metrics import score_predictions
from raydist.records import ASKED_SCHEMA, EVALUATION_SCHEMA, Example, GoldAnswer
from raydist.statistics import bootstrap_interval

RIGHT = "right"
CAUSES = (RIGHT, "misread", "lost in ranking", "not retrieved", "not in the documents")
ANSWERED_SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a question. Places count from 0, and are -1 if there is no such passage."""

    question: Question
    reply: Reply
    em: float  # of the best answer, given or withheld
    f1: float
    held_at: int  # the first passage with an answer, in the library's order
    gold_at: int  # the first known to answer
    ranked_at: int  # the first with an answer, reranked
    read: bool  # one with an answer was read

    @property
    def is_right(self) -> bool:
        return self.em >= 100

    @property
    def cause(self) -> str:
        """Why the best answer is right or wrong."""
        if self.is_right:
            return RIGHT
        if not self.question.answers:
            return "not in the documents"
        if self.held_at < 0:
            return "not retrieved"
        return "misread" if self.read else "lost in ranking"


def right_candidates(question: Question, gathered: Gathered) -> np.ndarray:
    """Which candidates are exact matches."""
    examples = [_example(question, str(place)) for place in range(len(gathered.candidates))]
    texts = {str(place): candidate.text for place, candidate in enumerate(gathered.candidates)}
    if not question.answers:
        return np.zeros(len(texts), bool)
    return np.array([score.em >= 100 for score in score_predictions(texts, examples, "squad")], bool)


def _example(question: Question, id: str) -> Example:
    return Example(id, question.text, "", [GoldAnswer(text, -1) for text in question.answers], language=question.language)


def judge(question: Question, gathered: Gathered, reply: Reply) -> Outcome:
    """One question's outcome."""
    em = f1 = 0.0
    if question.answers and reply.text:
        (score,) = score_predictions({"": reply.text}, [_example(question, "")], "squad")
        em, f1 = score.em, score.f1
    held = [question.is_held_by(passage) for passage in gathered.found]
    gold = [question.is_answered_by(passage) for passage in gathered.found] if question.knows_its_place else []
    ranked = [question.is_held_by(passage) for passage in gathered.ranked]
    read = any(question.is_held_by(passage) for passage in gathered.read)
    return Outcome(question, reply, em, f1, _first(held), _first(gold), _first(ranked), read)


def _first(values: Sequence[bool]) -> int:
    return values.index(True) if True in values else -1


# --- scores ----------------------------------------------------------------------------------------------------------


def chain_scores(outcomes: Sequence[Outcome], *, at_k: Sequence[int], reranked: bool, bootstrap: int = 0) -> dict[str, Any]:
    """All scores of a set. EM, F1 and recall cover the questions that the documents answer, always with the best answer."""
    asked = [outcome for outcome in outcomes if outcome.question.answers]
    scores: dict[str, Any] = {"questions": len(outcomes), "answerable": len(asked)}
    for name in ("em", "f1"):
        values = [getattr(outcome, name) for outcome in asked]
        scores[name] = _mean(values)
        if bootstrap and values:
            interval = bootstrap_interval(values, samples=bootstrap)
            scores |= {f"{name}.low": interval.low, f"{name}.high": interval.high}
    placed = [outcome for outcome in asked if outcome.question.knows_its_place]
    for k in at_k:
        scores[f"recall@{k}"] = _share(0 <= outcome.held_at < k for outcome in asked)
        if placed:
            scores[f"gold_recall@{k}"] = _share(0 <= outcome.gold_at < k for outcome in placed)
        if reranked:
            scores[f"reranked_recall@{k}"] = _share(0 <= outcome.ranked_at < k for outcome in asked)
    scores["recall_read"] = _share(outcome.read for outcome in asked)
    return scores | _withholding(outcomes) | _errors(outcomes)


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _share(flags: Any) -> float:
    return 100 * _mean(list(flags))


def _withholding(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Answered share and precision; precision at shares of answered questions; precision and recall of "not found"."""
    given = [outcome for outcome in outcomes if outcome.reply.answered]
    scores = {"answered": _share(outcome.reply.answered for outcome in outcomes)}
    scores["precision"] = _share(outcome.is_right for outcome in given)
    probability = np.array([outcome.reply.probability for outcome in outcomes])
    right = np.array([outcome.is_right for outcome in outcomes], float)
    best_first = right[np.argsort(-probability, kind="stable")]
    for share in ANSWERED_SHARES:
        scores[f"precision.at_{share:.0%}".rstrip("%")] = 100 * _mean(best_first[: max(1, round(share * len(outcomes)))])
    if all(outcome.reply.calibrated for outcome in outcomes):
        scores["calibration_error"] = 100 * expected_calibration_error(probability, right)
    absent = sum(not outcome.question.answers for outcome in outcomes)
    if absent:
        withheld = [outcome for outcome in outcomes if not outcome.reply.answered]
        rightly = sum(not outcome.question.answers for outcome in withheld)
        scores["not_found.precision"] = 100 * rightly / max(1, len(withheld))
        scores["not_found.recall"] = 100 * rightly / absent
    return scores


def _errors(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Counts of answered and withheld questions of each cause."""
    counts = {}
    for cause in CAUSES:
        for answered in (True, False):
            name = f"errors.{cause.replace(' ', '_')}.{'answered' if answered else 'withheld'}"
            counts[name] = sum(outcome.cause == cause and outcome.reply.answered == answered for outcome in outcomes)
    return counts


# --- tables ----------------------------------------------------------------------------------------------------------


def asked_table(outcomes: Sequence[Outcome]) -> pa.Table:
    """One row (ASKED_SCHEMA) for each question."""
    return pa.Table.from_pylist([_asked_row(outcome) for outcome in outcomes], schema=ASKED_SCHEMA)


def _asked_row(outcome: Outcome) -> dict[str, Any]:
    question, reply = outcome.question, outcome.reply
    return {
        "id": question.id,
        "cause": outcome.cause,
        "answered": reply.answered,
        "probability": reply.probability,
        "document_id": reply.source.document_id if reply.source else None,
        "passage_id": reply.source.passage_id if reply.source else None,
        "held_at": outcome.held_at,
        "gold_at": outcome.gold_at,
        "ranked_at": outcome.ranked_at,
    }


def evaluation_table(outcomes: Sequence[Outcome]) -> pa.Table:
    """One row (EVALUATION_SCHEMA) for each question: its best answer in its passage."""
    return pa.Table.from_pylist([_evaluation_row(outcome) for outcome in outcomes], schema=EVALUATION_SCHEMA)


def _evaluation_row(outcome: Outcome) -> Mapping[str, Any]:
    question, reply = outcome.question, outcome.reply
    withheld_rightly = not question.answers and not reply.answered
    return {
        "id": question.id,
        "question": question.text,
        "context": reply.source.text if reply.source else "",
        "language": question.language,
        "answers": list(question.answers),
        "prediction": reply.text if reply.answered else "",
        "start": reply.start if reply.answered and reply.source else -1,
        "probability": reply.probability,
        "em": 100.0 if withheld_rightly else outcome.em * reply.answered,
        "f1": 100.0 if withheld_rightly else outcome.f1 * reply.answered,
    }
