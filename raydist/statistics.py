"""How far a score would move with other questions: bootstrap over questions.

What is resampled, with replacement, is the rows that are averaged: questions, or for AddSent and AddOneSent original questions
(``adversarial_scores`` has one row for each). The model, its seed and the passages stay as they are, so an interval
says nothing about another training run, and questions about one passage are taken for independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raydist.errors import InputError
from raydist.records import Score

_NUMBERS_AT_ONCE = 1 << 21  # bounds the memory


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the interval that holds it with 95 % (or as asked) confidence."""

    mean: float
    low: float
    high: float
    rows: int
    resampled: str  # "questions" or "original questions"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second run's mean less the first's, its interval, and how likely so large a difference is if there is none."""

    difference: float
    low: float
    high: float
    p_value: float  # two-sided
    rows: int
    resampled: str


def _resampled_means(values: np.ndarray, samples: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    step = max(1, _NUMBERS_AT_ONCE // len(values))
    draws = (rng.integers(0, len(values), (min(step, samples - i), len(values))) for i in range(0, samples, step))
    return np.concatenate([values[draw].mean(1) for draw in draws])


def _checked(values: np.ndarray, resampled: str) -> np.ndarray:
    if values.ndim != 1 or not len(values):
        raise InputError(f"an interval needs the scores of one or more {resampled}; got an array of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{(~np.isfinite(values)).sum()} of {len(values)} scores are not finite numbers")
    return np.sort(values)  # the result does not depend on the order of the rows


def bootstrap_interval(
    scores: Sequence[float] | np.ndarray,
    *,
    samples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    resampled: str = "questions",
) -> Interval:
    """Percentile interval of the mean of per-question scores; it depends on the seed and the scores, not on their order."""
    values = _checked(np.asarray(scores, np.float64), resampled)
    low, high = np.quantile(_resampled_means(values, samples, seed), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high), len(values), resampled)


def paired_bootstrap(
    first: Mapping[str, float],
    second: Mapping[str, float],
    *,
    samples: int = 10000,
    seed: int = 0,
    level: float = 0.95,
    resampled: str = "questions",
) -> Comparison:
    """Compare two runs by their scores (id -> score) on the same questions; positive means that the second is better.

    Questions are drawn together with both their scores. The p-value is the share of draws whose difference lies at least as far
    from the observed difference as that lies from 0, the observed one counted among them.
    """
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())
        raise InputError(
            f"the two runs were not scored on the same {resampled}: {len(first)} and {len(second)}, "
            f"{len(odd)} in only one of them, such as {odd[0]!r}; evaluate both on the same test set"
        )
    values = _checked(np.array([second[key] - first[key] for key in first], np.float64), resampled)
    difference = float(values.mean())
    means = _resampled_means(values, samples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    as_far = np.abs(means - difference) >= abs(difference) * (1 - 1e-12)
    return Comparison(difference, float(low), float(high), float((as_far.sum() + 1) / (samples + 1)), len(values), resampled)


def adversarial_scores(scores: Sequence[Score]) -> list[Score]:
    """AddSent and AddOneSent (docs/methods.md 3.7): one score per original question, that of its worst adversarial copy.

    The original of an id is what stands before its first ``-``. Rows without prediction are passed over, an original without
    any prediction scores 0, and the original itself counts only where it has no copy. EM is that of the row with the lowest F1,
    the first of them in the order of the file. For the report, what is resampled is originals, not rows.
    """
    rows_of: dict[str, list[Score]] = {}
    for score in scores:
        rows_of.setdefault(score.id.split("-", 1)[0], []).append(score)
    worst = []
    for original, rows in rows_of.items():
        predicted = [row for row in rows if row.prediction is not None]
        copies = [row for row in predicted if row.id != original]
        row = min(copies or predicted or rows, key=lambda row: row.f1)  # min takes the first of equals
        worst.append(replace(row, id=original))
    return worst
