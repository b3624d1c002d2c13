"""Uncertainty of a score over questions, and of a difference over seeds: bootstrap over seeds, then questions.

The averaged rows are resampled, with replacement: questions, or for AddSent and AddOneSent original questions
(``adversarial_scores`` returns one row for each). Passages stay fixed, and questions about the same one count as independent.
For one run, or one run against another, model and seed stay fixed, too, so the result does not extend to another training;
groups of runs with several seeds do (``compare_groups``).
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
    """A mean and its interval, of 95 % confidence or the given level."""

    mean: float
    low: float
    high: float
    rows: int
    resampled: str  # "questions" or "original questions"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second run's mean less the first's, its interval, and the p-value of no difference."""

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
    """Compare two runs by their scores (id -> score) on the same questions; positive: the second is better.

    Questions are drawn together with both their scores. The p-value is the share of draws whose difference is at least as far
    from the observed one as that is from 0; the observed one counts as a draw.
    """
    return compare_groups([first], [second], samples=samples, seed=seed, level=level, resampled=resampled)


def compare_groups(
    first: Sequence[Mapping[str, float]],
    second: Sequence[Mapping[str, float]],
    *,
    samples: int = 10000,
    seed: int = 0,
    level: float = 0.95,
    resampled: str = "questions",
) -> Comparison:
    """Compare two groups of runs that differ in their seed, by scores (id -> score) on the same questions.

    A bootstrap over seeds, then questions. Three seeds drawn with replacement would understate their spread by a fifth, and its
    tails: so the seeds' part of a draw comes from Student's distribution around 0, scaled to the spread of the seeds of both
    groups. One seed per group gives no spread: then only questions are drawn.
    """
    ids = first[0].keys()
    for run in (*first, *second):
        if run.keys() != ids:
            odd = sorted(ids ^ run.keys())
            raise InputError(
                f"the two runs were not scored on the same {resampled}: {len(ids)} and {len(run)}, "
                f"{len(odd)} in only one of them, such as {odd[0]!r}; evaluate both on the same test set"
            )
    groups = [np.array([[run[id] for id in ids] for run in group], np.float64) for group in (first, second)]
    values = _checked(groups[1].mean(0) - groups[0].mean(0), resampled)
    difference = float(values.mean())
    means = _resampled_means(values, samples, seed) + _seed_noise([scores_SQ.mean(1) for scores_SQ in groups], samples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    as_far = np.abs(means - difference) >= abs(difference) * (1 - 1e-12)
    return Comparison(difference, float(low), float(high), float((as_far.sum() + 1) / (samples + 1)), len(values), resampled)


def _seed_noise(means: Sequence[np.ndarray], samples: int, seed: int) -> np.ndarray:
    """The contribution of other seeds to the difference of two groups' means, from their pooled variance."""
    freedom = sum(len(group) - 1 for group in means)
    if not freedom:
        return np.zeros(samples)
    variance = sum(((group - group.mean()) ** 2).sum() for group in means) / freedom
    width = np.sqrt(variance * sum(1 / len(group) for group in means))
    return width * np.random.default_rng([seed, 1]).standard_t(freedom, samples)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of a table's tests, corrected for their number (Holm): with no true difference, the chance of any p-value
    below 0.05 in the table is 5 %."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(1, np.maximum.accumulate(np.array(p_values)[order] * np.arange(len(order), 0, -1)))
    return corrected.tolist()


def adversarial_scores(scores: Sequence[Score]) -> list[Score]:
    """AddSent and AddOneSent (docs/methods.md 3.7): one score per original question, that of its worst adversarial copy.

    The original of an id is the part before its first ``-``. Rows without prediction are skipped, an original without any
    prediction scores 0, and the original itself counts only if it has no copy. EM is that of the row with the lowest F1, the
    first of them in file order. The report resamples originals, not rows.
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
