"""One list from two: BM25's and a dense index's, by rank or by score.

    rrf      sum of 1 / (60 + rank)                                       (Cormack, Clarke and Buettcher, SIGIR 2009)
    minmax   (1 - w) b + w d, each score as (score - lowest) / (highest - lowest) of its list
    z        the same with (score - lowest) / standard deviation of its list

A candidate missing from a list gets nothing from it, as if it came last. w is the weight of the dense list. Both lists are
exact to a fixed depth, ties go to the smaller id, and a score is rounded once, to float32: a result does not depend on the
layout of an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from raydist.errors import InputError

Id = TypeVar("Id", str, int)
Candidates = Sequence[tuple[Id, float]]  # best first
FusionKind = Literal["rrf", "minmax", "z"]

RRF_PLACES = 60  # added to a rank, so that the first places do not dominate
TRIED_WEIGHTS = np.arange(0, 21) / 20


@dataclass(frozen=True)
class Fusion:
    """A way to merge two lists."""

    kind: FusionKind = "rrf"
    dense_weight: float = 0.5  # of the dense scores, from 0 to 1; ranks have none

    def __post_init__(self) -> None:
        if self.kind not in get_args(FusionKind) or not 0 <= self.dense_weight <= 1:
            raise InputError(
                f"fusion is one of {', '.join(get_args(FusionKind))}, with a dense_weight from 0 to 1; got {self.kind!r} and "
                f"{self.dense_weight}"
            )

    def fuse(self, bm25: Candidates[Id], dense: Candidates[Id]) -> list[tuple[Id, float]]:
        """All candidates of both lists, best first."""
        ids, shares = candidate_shares(bm25, dense, self.kind)
        return sorted(zip(ids, self.scores(shares).tolist()), key=lambda pair: (-pair[1], pair[0]))

    def scores(self, shares: np.ndarray) -> np.ndarray:
        """One score from the shares of both lists, [candidates, 2]."""
        weights = (1.0, 1.0) if self.kind == "rrf" else (1 - self.dense_weight, self.dense_weight)
        return (weights[0] * shares[:, 0] + weights[1] * shares[:, 1]).astype(np.float32)


def candidate_shares(bm25: Candidates[Id], dense: Candidates[Id], kind: FusionKind) -> tuple[list[Id], np.ndarray]:
    """All candidates, and the share that each list gives them, [candidates, 2]."""
    found: dict[Id, list[float]] = {}
    for place, candidates in enumerate((bm25, dense)):
        shares = _shares(np.array([score for _, score in candidates], np.float64), kind)
        for (id, _), share in zip(candidates, shares.tolist()):
            found.setdefault(id, [0.0, 0.0])[place] = share
    return list(found), np.array(list(found.values()), np.float64).reshape(-1, 2)


def _shares(scores: np.ndarray, kind: FusionKind) -> np.ndarray:
    if kind == "rrf":
        return 1 / (RRF_PLACES + 1 + np.arange(len(scores)))
    if not len(scores):
        return scores
    width = scores.max() - scores.min() if kind == "minmax" else scores.std()
    return (scores - scores.min()) / width if width > 0 else np.ones(len(scores))  # all equal: all count as best


def tune(
    bm25: Mapping[str, Candidates[str]], dense: Mapping[str, Candidates[str]], gold: Mapping[str, Mapping[str, int]]
) -> Fusion:
    """The fusion with the highest MRR on questions with gold outside test sets; ties go to ranks, then the middle weight."""
    tried = [Fusion(), *(Fusion(kind, float(weight)) for kind in ("minmax", "z") for weight in TRIED_WEIGHTS)]
    sums = np.zeros(len(tried))
    for question, judged in gold.items():
        for kind in get_args(FusionKind):
            ids, shares = candidate_shares(bm25.get(question, ()), dense.get(question, ()), kind)
            for place, fusion in enumerate(tried):
                if fusion.kind == kind:
                    sums[place] += _reciprocal_rank(ids, fusion.scores(shares), judged)
    best = sums >= sums.max() - 1e-9
    return min((fusion for fusion, is_best in zip(tried, best) if is_best), key=_plainness)


def _plainness(fusion: Fusion) -> tuple[bool, float, str]:
    return fusion.kind != "rrf", abs(fusion.dense_weight - 0.5), fusion.kind


def _reciprocal_rank(ids: Sequence[str], scores: np.ndarray, judged: Mapping[str, int]) -> float:
    places = [place for place, id in enumerate(ids) if judged.get(id, 0) > 0]
    ranks = [
        1
        + int((scores > scores[at]).sum())
        + sum(ids[other] < ids[at] for other in np.flatnonzero(scores == scores[at]).tolist())
        for at in places
    ]
    return 1 / min(ranks) if ranks else 0.0
