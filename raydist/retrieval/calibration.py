"""Scores of a cross-encoder on held-out pairs, and the calibration of its probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    """Judge logits of held-out pairs {label, logit, source} beside an encoder's cosines of the same pairs {label, cosine}.

    Negatives that the encoder itself ranked high count against it: `even_...` leaves them out of the comparison.
    """
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
    products = cosines["cosine"].to_numpy()
    even = pc.fill_null(pc.not_equal(scored["source"], "dense"), True).to_numpy()
    scores = classification_scores(labels, logits) | {
        "dense_average_precision": average_precision(labels, products),
        "even_average_precision": average_precision(labels[even], logits[even]),
        "even_dense_average_precision": average_precision(labels[even], products[even]),
        "pairs": len(labels),
    }
    return Judgement(scores, reliability | {"temperature": temperature})


class Reached(NamedTuple):
    """A threshold, and what of the held-out pairs lies at or above it."""

    threshold: float
    precision: float  # share of right pairs
    pairs: int


def reach_precision(labels: np.ndarray, probabilities: np.ndarray, wanted: float) -> Reached:
    """The lowest threshold from which at least the wanted share of pairs is right; if none is, that of the highest share."""
    order = np.argsort(-probabilities, kind="stable")
    ordered = probabilities[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # of equal probabilities all or none are taken
    precision = np.cumsum(labels[order])[last] / (last + 1)
    enough = np.flatnonzero(precision >= wanted)
    place = int(enough[-1] if len(enough) else precision.argmax())
    return Reached(float(ordered[last[place]]), float(precision[place]), int(last[place]) + 1)
