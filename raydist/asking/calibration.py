"""The probability of an answer, and the threshold from which it is given (docs/asking.md).

Two logistic regressions, both fitted on questions with known answers. One weighs the features of every candidate and orders
them. The other takes the logit and the lead of each question's best candidate, and gives the probability of the reply. A
threshold is the lowest that reaches a wanted precision on those questions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from raydist.asking.merge import FEATURES
from raydist.errors import InputError
from raydist.files.given import parse_json

FORMAT = 1
PENALTY = 1e-4  # on squared weights of standardised features, as a share of the mean loss: useless features weigh nothing
STEPS = 100
LEAST_QUESTIONS = 20
CURVE_POINTS = 200
EVEN = 0.5  # without a wanted precision: answers more likely wrong than right are withheld
LEAD = 20.0  # of an answer without a rival; the maximum
RANK_COST = 1.0  # without a calibration: logits for each unit of FEATURES' rank


@dataclass(frozen=True)
class Logistic:
    """p = sigmoid(bias + sum of weight * (value - mean) / scale). An unknown value counts as the mean."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weight: tuple[float, ...]
    bias: float

    def logits(self, table: np.ndarray) -> np.ndarray:
        return _standardised(table, np.array(self.mean), np.array(self.scale)) @ np.array(self.weight) + self.bias


def _standardised(table: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(table), (table - mean) / scale, 0.0)


def fit_logistic(table: np.ndarray, labels: np.ndarray) -> Logistic:
    """Weights of the lowest penalised loss, by Newton's method; a feature without variation, or never known, weighs 0."""
    known = np.isfinite(table)
    count = np.maximum(1, known.sum(0))
    mean = np.where(known, table, 0.0).sum(0) / count
    scale = np.sqrt((np.where(known, table - mean, 0.0) ** 2).sum(0) / count)
    varies = scale > 1e-9
    scale = np.where(varies, scale, 1.0)
    rows = np.column_stack([_standardised(table, mean, scale) * varies, np.ones(len(table))])
    penalty = np.append(np.full(table.shape[1], PENALTY), 1e-9)
    weights = np.zeros(rows.shape[1])
    loss = _loss(rows, labels, weights, penalty)
    for _ in range(STEPS):
        p = sigmoid(rows @ weights)
        slope = rows.T @ (p - labels) / len(rows) + penalty * weights
        bend = (rows * (p * (1 - p))[:, None]).T @ rows / len(rows) + np.diag(penalty)
        step, size = np.linalg.solve(bend, slope), 1.0
        while (lower := _loss(rows, labels, weights - size * step, penalty)) > loss and size > 1e-6:
            size /= 2
        weights, gained, loss = weights - size * step, loss - lower, lower
        if gained < 1e-12:
            break
    return Logistic(_floats(mean), _floats(scale), _floats(weights[:-1]), float(weights[-1]))


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))


def _loss(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: np.ndarray) -> float:
    logits = rows @ weights
    return float((np.logaddexp(0, logits) - labels * logits).mean() + (penalty * weights**2).sum() / 2)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * logits))


# --- calibration -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """The effect of a threshold on the questions of the fit."""

    threshold: float
    precision: float  # share of the given answers that are right
    answered: float  # share of the questions that are answered


@dataclass(frozen=True)
class Calibration:
    """Feature weights, the probability of a reply, and the effect of thresholds."""

    merge: Logistic
    reply: Logistic
    questions: int
    curve: tuple[Point, ...]  # from the highest threshold to the lowest
    setup: Mapping[str, str] = field(default_factory=dict)  # models and settings of the fit: valid for these alone

    def order(self, table: np.ndarray) -> np.ndarray:
        """The evidence for each candidate, as logits."""
        return self.merge.logits(table)

    def probability(self, logits: np.ndarray) -> float:
        """The probability that the best of a question's candidates is right."""
        return float(sigmoid(self.reply.logits(best_and_lead(logits)[None]))[0])

    def threshold_for(self, precision: float | None) -> float:
        """The lowest threshold that reaches a precision on the questions of the fit."""
        if precision is None:
            return EVEN
        reaching = [point.threshold for point in self.curve if point.precision >= precision]
        if not reaching:
            best = max((point.precision for point in self.curve), default=0.0)
            raise InputError(
                f"precision {precision:g} is not reached by any threshold on the {self.questions:,} questions of the "
                f"calibration, at most {best:.3f}: ask for less, or give a threshold"
            )
        return min(reaching)

    # --- as a file ---------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "features": list(FEATURES), **asdict(self)}

    @classmethod
    def from_json(cls, found: Any, name: object) -> Self:
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("features") != list(FEATURES):
            raise InputError(f"{name} is not a calibration of this version; recreate it with `raydist evaluate`")
        try:
            merge, reply = (_logistic(found[part], width) for part, width in (("merge", len(FEATURES)), ("reply", 2)))
            curve = tuple(Point(*(float(point[part]) for part in Point.__dataclass_fields__)) for point in found["curve"])
            setup = {str(key): str(value) for key, value in found["setup"].items()}
            return cls(merge, reply, int(found["questions"]), curve, setup)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{name} is a damaged calibration ({error!r}); recreate it with `raydist evaluate`") from None

    @classmethod
    def load(cls, path: Path | str) -> Self:
        try:
            return cls.from_json(parse_json(Path(path).read_bytes()), path)
        except OSError as error:
            raise InputError(f"calibration {path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is not JSON; recreate it with `raydist evaluate`") from None

    def save(self, path: Path | str) -> None:
        Path(path).write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")


def _logistic(values: Any, width: int) -> Logistic:
    found = Logistic(_floats(values["mean"]), _floats(values["scale"]), _floats(values["weight"]), float(values["bias"]))
    if not len(found.mean) == len(found.scale) == len(found.weight) == width:
        raise ValueError(f"wanted {width} weights")
    return found


def best_and_lead(logits: np.ndarray) -> np.ndarray:
    """The highest logit, and its lead over the second."""
    highest = np.sort(logits)[::-1][:2]
    return np.array([highest[0], min(LEAD, highest[0] - highest[1]) if len(highest) > 1 else LEAD])


def fit_calibration(
    tables: Sequence[np.ndarray], right: Sequence[np.ndarray], setup: Mapping[str, str] | None = None
) -> Calibration:
    """Fit to the features of each question's candidates, and which of them are right."""
    asked = [(table, is_right) for table, is_right in zip(tables, right, strict=True) if len(table)]
    labels = np.concatenate([is_right for _, is_right in asked]) if asked else np.zeros(0, bool)
    if len(tables) < LEAST_QUESTIONS or labels.all() or not labels.any():
        raise InputError(
            f"{len(tables):,} questions with {int(labels.sum()):,} right and {int((~labels).sum()):,} wrong candidates are not "
            f"enough for a calibration; wanted {LEAST_QUESTIONS} questions or more, and candidates of both kinds"
        )
    merge = fit_logistic(np.concatenate([table for table, _ in asked]), labels.astype(float))
    logits = [merge.logits(table) for table, _ in asked]
    first_right = np.array([is_right[np.argmax(values)] for values, (_, is_right) in zip(logits, asked)], float)
    leads = np.array([best_and_lead(values) for values in logits])
    reply = fit_logistic(leads, first_right)
    curve = threshold_curve(sigmoid(reply.logits(leads)), first_right.astype(bool), len(tables))
    return Calibration(merge, reply, len(tables), curve, dict(setup or {}))


def threshold_curve(probability: np.ndarray, right: np.ndarray, questions: int) -> tuple[Point, ...]:
    """Precision and answered share of thresholds, which are evenly spaced by the number of answers above them."""
    order = np.argsort(-probability, kind="stable")
    sorted_p = probability[order]
    last = np.flatnonzero(np.append(np.diff(sorted_p) != 0, True))  # equal ones pass together
    if len(last) > CURVE_POINTS:
        last = np.unique(last[np.linspace(0, len(last) - 1, CURVE_POINTS).round().astype(int)])
    hits, given = np.cumsum(right[order])[last], last + 1
    rows = zip(sorted_p[last].tolist(), (hits / given).tolist(), (given / questions).tolist())
    return tuple(Point(*row) for row in rows)


def expected_calibration_error(probability: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Mean over all replies of the distance between a bin's probability and its share of right ones."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    counts = np.bincount(place, minlength=bins)
    sums = np.bincount(place, weights=probability - right, minlength=bins)
    return float(np.abs(sums).sum() / max(1, counts.sum()))


# --- without one -----------------------------------------------------------------------------------------------------


def uncalibrated_order(table: np.ndarray) -> np.ndarray:
    """Span scores, a little lower for later passages. No null scores: they mean nothing unless a reader is trained on them."""
    return table[:, FEATURES.index("span")] - RANK_COST * table[:, FEATURES.index("rank")]


def uncalibrated_probability(logits: np.ndarray) -> float:
    """The best candidate's share of a softmax over all."""
    return float(1 / np.exp(logits - logits.max()).sum())
