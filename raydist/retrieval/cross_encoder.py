"""The cross-encoder: one logit per (question, sentence), p = sigmoid(logit); its metrics and its calibration (methods 5.3).

A calibrated probability is sigmoid((logit - shift) / temperature), with shift 0 unless fitted. Both are stored beside the
scores, not in the model: logits are written raw, so that threshold, power and calibration can change without a model call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from raydist.errors import InputError
from raydist.models.checked import check_model
from raydist.models.loading import load_pretrained, open_config
from raydist.models.saving import save_model, save_tokenizer
from raydist.objectives.pairs import Tokens

TEMPERATURES = (0.01, 100.0)  # the range of a fit


class CrossEncoder(nn.Module):
    """A sequence classifier of transformers with one logit. Only `classifier` is saved."""

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.classifier: Any = classifier

    def forward(self, tokens: Tokens) -> Tensor:
        """One logit for each pair, [B]."""
        return self.classifier(**tokens.inputs()).logits.squeeze(-1)

    def save(self, folder: Path, tokenizer_folder: Path, *, max_length: int = 480) -> None:
        """A folder for AutoModelForSequenceClassification and for sentence-transformers' CrossEncoder, whose scores are p."""
        self.classifier.config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
        save_model(self.classifier, folder, tokenizer_folder)
        save_tokenizer(tokenizer_folder, folder, max_length=max_length)


def load_cross_encoder(folder: Path, *, attention: str = "auto", dropout: float | None = None, seed: int = 0) -> CrossEncoder:
    """The model in a folder as a cross-encoder. A folder of an encoder gets a new, seeded head."""
    from transformers import AutoModelForSequenceClassification

    _check_labels(folder)
    model_class = AutoModelForSequenceClassification
    return CrossEncoder(load_pretrained(model_class, folder, attention=attention, dropout=dropout, seed=seed, num_labels=1))


def check_cross_encoder(folder: Path, *, trained: bool) -> None:
    """Reject, without loading weights, whatever `load_cross_encoder` would reject; if `trained`, also one without a head."""
    _check_labels(folder)
    check_model(folder, "AutoModelForSequenceClassification", trained_head=trained, num_labels=1)


def _check_labels(folder: Path) -> None:
    config = open_config(folder)
    is_classifier = any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
    if is_classifier and config.num_labels != 1:
        raise InputError(
            f"{folder} is a classifier with {config.num_labels} labels; a cross-encoder has one logit: take another"
        )


# --- metrics ---------------------------------------------------------------------------------------------------------


def sigmoid(logits: np.ndarray, temperature: float = 1.0, shift: float = 0.0) -> np.ndarray:
    """p of every logit, in float64, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * (np.asarray(logits, np.float64) - shift) / temperature))


def classification_scores(
    labels: np.ndarray, logits: np.ndarray, *, threshold: float = 0.5, temperature: float = 1.0
) -> dict[str, float]:
    """Accuracy, precision, recall and F1 of ``p >= threshold``, average precision, and the accuracy of the majority class.

    A ratio over nothing is 0. Average precision takes equal logits as one step, so it does not depend on the order of rows.
    """
    labels, logits = _checked(labels, logits)
    is_kept = sigmoid(logits, temperature) >= threshold
    hits, kept, right = int((is_kept & labels).sum()), int(is_kept.sum()), int(labels.sum())
    return {
        "accuracy": float((is_kept == labels).mean()),
        "precision": hits / max(1, kept),
        "recall": hits / max(1, right),
        "f1": 2 * hits / max(1, kept + right),
        "average_precision": average_precision(labels, logits),
        "majority": max(right, len(labels) - right) / len(labels),
    }


def average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    """sum over the distinct scores, highest first, of (recall - recall before) * precision; 0 without a positive."""
    labels, scores = _checked(labels, scores)
    order = np.argsort(-scores, kind="stable")
    last_of_its_score = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(labels[order])[last_of_its_score]
    kept = np.arange(1, len(scores) + 1)[last_of_its_score]
    return float((np.diff(hits, prepend=0) * hits / kept).sum() / max(1, hits[-1]))


# --- calibration -----------------------------------------------------------------------------------------------------


class Bin(NamedTuple):
    """One bar of a reliability diagram."""

    lower: float
    upper: float
    num_pairs: int
    probability: float  # mean of p; 0 in an empty bin
    positive: float  # share of positives; 0 in an empty bin


def fit_temperature(labels: np.ndarray, logits: np.ndarray) -> float:
    """The temperature with the lowest negative log likelihood, within ``TEMPERATURES``. It changes neither the order of the
    pairs nor which of them have p >= 0.5.

    The likelihood is convex in b = 1 / temperature: bisection finds the zero of its slope,
    mean(logit * (sigmoid(b * logit) - label)).
    """
    labels, logits = _checked(labels, logits)
    return _halved_in(lambda temperature: float((logits * (sigmoid(logits, temperature) - labels)).mean()))


class Platt(NamedTuple):
    """p = sigmoid((logit - shift) / temperature)."""

    temperature: float
    shift: float


def fit_platt(labels: np.ndarray, logits: np.ndarray) -> Platt:
    """Temperature and shift of the lowest negative log likelihood (Platt scaling), the temperature within ``TEMPERATURES``.

    For each temperature the best shift makes the mean of p the share of positives; with it the likelihood is convex in
    1 / temperature, as in ``fit_temperature``.
    """
    labels, logits = _checked(labels, logits)
    share = labels.mean()

    def best_shift(temperature: float) -> float:
        low, high = logits.min() - 50 * temperature, logits.max() + 50 * temperature  # p is 0 or 1 beyond them
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if sigmoid(logits, temperature, middle).mean() > share else (low, middle)
        return float((low + high) / 2)

    def slope(temperature: float) -> float:
        return float((logits * (sigmoid(logits, temperature, best_shift(temperature)) - labels)).mean())

    temperature = _halved_in(slope)
    return Platt(temperature, best_shift(temperature))


def _halved_in(slope: Callable[[float], float]) -> float:
    """The temperature at which a likelihood's slope in 1 / temperature crosses 0, by bisection."""
    low, high = np.log(1 / TEMPERATURES[1]), np.log(1 / TEMPERATURES[0])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(float(np.exp(-middle))) <= 0 else (low, middle)  # 0: no float could gain more
    return float(np.exp(-(low + high) / 2))


def reliability_bins(labels: np.ndarray, probabilities: np.ndarray, num_bins: int = 10) -> list[Bin]:
    """How often pairs of like probability are positive, in bins of equal width; p = 1 is in the last."""
    labels, probabilities = _checked(labels, probabilities)
    outside = probabilities[(probabilities < 0) | (probabilities > 1)]
    if len(outside):
        raise InputError(f"{outside[0]} is no probability; put logits through sigmoid first")
    place = np.minimum((probabilities * num_bins).astype(int), num_bins - 1)
    bins = []
    for number in range(num_bins):
        inside = place == number
        count = int(inside.sum())
        means = (float(probabilities[inside].mean()), float(labels[inside].mean())) if count else (0.0, 0.0)
        bins.append(Bin(number / num_bins, (number + 1) / num_bins, count, *means))
    return bins


def expected_calibration_error(bins: list[Bin]) -> float:
    """Mean over all pairs of the distance between a bin's probability and its share of positives."""
    total = sum(each.num_pairs for each in bins)
    return sum(each.num_pairs * abs(each.probability - each.positive) for each in bins) / total


def _checked(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels as booleans and scores in float64, checked: equally many, at least one, all finite."""
    labels, scores = np.asarray(labels), np.asarray(scores, np.float64)
    if labels.shape != scores.shape or labels.ndim != 1 or not len(labels):
        raise InputError(
            f"labels of shape {labels.shape} and scores of shape {scores.shape}; wanted as many of each, one or more"
        )
    if not np.isfinite(scores).all():
        raise InputError(f"score {int(np.flatnonzero(~np.isfinite(scores))[0])} is not finite; mend the scores first")
    if not np.isin(labels, (0, 1)).all():
        raise InputError(f"label {labels[~np.isin(labels, (0, 1))][0]} is neither 0 nor 1")
    return labels.astype(bool), scores
