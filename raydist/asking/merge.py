"""From the spans of several passages to one list of answers (docs/asking.md).

A span's logits are comparable across passages as they are: nothing is normalised within a passage. Equal answers become one,
with the number of passages that agree on it. The evidence for an answer is a row of FEATURES; `calibration.py` weighs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raydist.asking.retriever import Passage
from raydist.reader.metrics import normaliser

FEATURES = (
    "span",  # start logit + end logit
    "margin",  # the same less the passage's null score: noise, unless the reader is trained to leave questions unanswered
    "share",  # logarithm of the span's probability among those of its passage and the null span
    "bm25",  # scores of the passage; NaN if unknown
    "dense",
    "cross_encoder",
    "rank",  # logarithm of the passage's place
    "agreement",  # logarithm of the number of passages with the answer among their best spans
)


class Span(Protocol):
    """One of the best spans of a passage, as `raydist.Reader` returns it."""

    @property
    def text(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def score(self) -> float: ...

    @property
    def probability(self) -> float: ...


class ReadPassage(Protocol):
    """A reader's result for a passage."""

    @property
    def nbest(self) -> Sequence[Span]: ...

    @property
    def null_score(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer, in its best passage: `passages[passage].text[start:end] == text`."""

    text: str
    passage: int  # its place among the passages read
    start: int
    end: int
    score: float  # of the span
    passages: int  # the number with the answer among their best spans
    features: tuple[float, ...]


def merge_spans(passages: Sequence[Passage], answers: Sequence[ReadPassage], per_passage: int) -> list[Candidate]:
    """The answers in the best spans of each passage, the highest span first; one for each normalised text."""
    same = normaliser("squad")
    groups: dict[str, list[tuple[int, Span]]] = {}
    for place, answer in enumerate(answers):
        for span in answer.nbest[:per_passage]:
            if text := same(span.text):
                groups.setdefault(text, []).append((place, span))
    merged = []
    for spans in groups.values():
        place, best = max(spans, key=lambda found: (found[1].score, -found[0]))
        agreeing = len({place for place, _ in spans})
        features = _features(passages[place], place, best, answers[place].null_score, agreeing)
        merged.append(Candidate(best.text, place, best.start, best.end, best.score, agreeing, features))
    return sorted(merged, key=lambda candidate: (-candidate.score, candidate.passage, candidate.start))


def _features(passage: Passage, place: int, span: Span, null_score: float, agreeing: int) -> tuple[float, ...]:
    scores = passage.scores
    return (
        span.score,
        span.score - null_score,
        float(np.log(max(span.probability, 1e-9))),
        scores.get("bm25", np.nan),
        scores.get("dense", np.nan),
        scores.get("cross_encoder", np.nan),
        float(np.log1p(place)),
        float(np.log(agreeing)),
    )


def feature_table(candidates: Sequence[Candidate]) -> np.ndarray:
    """[candidates, FEATURES], float64."""
    rows = [candidate.features for candidate in candidates]
    return np.array(rows, np.float64).reshape(len(rows), len(FEATURES))
