"""Scores of a cross-encoder on held-out pairs, and the calibration of its probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from raydist.retrieval.cross_encoder import (
    Platt,
    average_precision,
    classification_scores,
    expected_calibration_error,
    fit_platt,
    fit_temperature,
    reliability_bins,
    sigmoid,
)


class Judgement(NamedTuple):
    """Scores of held-out pairs, and the calibrations fitted to them."""

    scores: dict[str, Any]
    reliability: dict[str, Any]


def judge_pairs(scored: pa.Table, cosines: pa.Table) -> Judgement:
    """Judge logits of held-out pairs {label, logit} beside an encoder's cosines of the same pairs {label, cosine}."""
    labels, logits = scored["label"].to_numpy().astype(int), scored["logit"].to_numpy().astype(float)
    temperature, platt = fit_temperature(labels, logits), fit_platt(labels, logits)
    reliability: dict[str, Any] = {}
    for name, fitted in (("before", Platt(1.0, 0.0)), ("after", Platt(temperature, 0.0)), ("platt", platt)):
        bins = reliability_bins(labels, sigmoid(logits, *fitted))
        error = expected_calibration_error(bins)
        reliability[name] = {
            **fitted._asdict(),
            "expected_calibration_error": error,
            "bins": [bin._asdict() for bin in bins],
        }
    by_vectors = average_precision(cosines["label"].to_numpy(), cosines["cosine"].to_numpy())
    scores = classification_scores(labels, logits) | {"dense_average_precision": by_vectors, "pairs": len(labels)}
    return Judgement(scores, reliability | {"temperature": temperature})
