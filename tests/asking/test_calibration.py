"""Weights, probabilities and thresholds, against what is known of invented questions."""

import json

import numpy as np
import pytest

from raydist.asking.calibration import (
    EVEN,
    Calibration,
    best_and_lead,
    expected_calibration_error,
    fit_calibration,
    fit_logistic,
    sigmoid,
    threshold_curve,
)
from raydist.asking.merge import FEATURES
from raydist.errors import InputError

SPAN, MARGIN, BM25, DENSE = (FEATURES.index(name) for name in ("span", "margin", "bm25", "dense"))


def questions(number: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Six candidates each: the span's score says much, the passage's a little, the null score nothing."""
    random = np.random.default_rng(seed)
    tables, right = [], []
    for _ in range(number):
        table = np.zeros((6, len(FEATURES)))
        table[:, SPAN], table[:, BM25] = random.normal(5, 3, 6), random.normal(10, 4, 6)
        table[:, MARGIN], table[:, DENSE] = random.normal(0, 50, 6), np.nan
        logit = 1.0 * (table[:, SPAN] - 5) + 0.2 * (table[:, BM25] - 10) - 3
        tables.append(table)
        right.append(random.random(6) < sigmoid(logit))
    return tables, right


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return fit_calibration(*questions(3000, 0), {"kind": "bm25"})


def test_weights_are_those_that_the_answers_were_drawn_by():
    tables, right = questions(5000, 1)
    found = fit_logistic(np.concatenate(tables), np.concatenate(right).astype(float))
    plain = np.array(found.weight) / np.array(found.scale)
    assert plain[SPAN] == pytest.approx(1.0, rel=0.05)
    assert plain[BM25] == pytest.approx(0.2, rel=0.1)
    assert abs(plain[MARGIN]) < 0.003  # of a reader without no-answer training: noise weighs nothing
    assert plain[DENSE] == 0.0  # never known


def test_the_fit_is_the_lowest_loss_by_a_slow_twin():
    random = np.random.default_rng(2)
    rows, labels = random.normal(size=(200, 2)), random.integers(0, 2, 200).astype(float)
    found = fit_logistic(rows, labels)
    standard = (rows - rows.mean(0)) / rows.std(0)
    weights = np.zeros(3)
    for _ in range(40_000):  # plain gradient descent
        p = sigmoid(standard @ weights[:2] + weights[2])
        weights -= 0.5 * np.append(standard.T @ (p - labels) / 200 + 1e-4 * weights[:2], (p - labels).mean())
    np.testing.assert_allclose([*found.weight, found.bias], weights, atol=1e-6)


def test_separable_answers_have_finite_weights():
    rows = np.array([[-1.0], [-2.0], [1.0], [2.0]] * 10)
    found = fit_logistic(rows, (rows[:, 0] > 0).astype(float))
    assert 3 < found.weight[0] < 100


def test_an_unknown_value_counts_as_the_mean(calibration):
    table = questions(1, 3)[0][0]
    absent, mean = table.copy(), table.copy()
    absent[:, BM25], mean[:, BM25] = np.nan, calibration.merge.mean[BM25]
    np.testing.assert_allclose(calibration.order(absent), calibration.order(mean))


def test_probabilities_are_true_on_other_questions(calibration):
    tables, right = questions(4000, 4)
    logits = [calibration.order(table) for table in tables]
    probability = np.array([calibration.probability(values) for values in logits])
    is_right = np.array([flags[np.argmax(values)] for values, flags in zip(logits, right)], float)
    assert 0.2 < is_right.mean() < 0.8
    assert expected_calibration_error(probability, is_right) < 0.03


def test_a_threshold_reaches_the_wanted_precision_on_other_questions_and_answers_fewer(calibration):
    tables, right = questions(4000, 5)
    logits = [calibration.order(table) for table in tables]
    probability = np.array([calibration.probability(values) for values in logits])
    is_right = np.array([flags[np.argmax(values)] for values, flags in zip(logits, right)], float)
    given = [probability >= calibration.threshold_for(wanted) for wanted in (0.6, 0.8, 0.9)]
    assert [is_right[each].mean() for each in given] == pytest.approx([0.6, 0.8, 0.9], abs=0.04)
    assert given[0].mean() > given[1].mean() > given[2].mean() > 0.02


def test_without_a_wanted_precision_what_is_more_likely_wrong_is_withheld(calibration):
    assert calibration.threshold_for(None) == EVEN == 0.5


def test_a_precision_that_nothing_reaches_is_refused_with_the_best_there_is():
    curve = threshold_curve(np.array([0.9, 0.8, 0.7]), np.array([False, True, True]), 3)
    fit = fit_logistic(np.zeros((2, 1)), np.array([0.0, 1.0]))
    with pytest.raises(InputError, match=r"precision 0\.9 is not reached .* at most 0\.667: ask for less"):
        Calibration(fit, fit, 3, curve).threshold_for(0.9)


def test_the_curve_by_hand_equal_probabilities_passing_together():
    curve = threshold_curve(np.array([0.5, 0.9, 0.5, 0.2]), np.array([True, True, False, False]), 5)  # one without candidates
    assert [(point.threshold, point.precision, point.answered) for point in curve] == [
        (0.9, 1.0, 0.2),
        (0.5, pytest.approx(2 / 3), pytest.approx(0.6)),
        (0.2, 0.5, 0.8),
    ]


def test_best_and_lead():
    assert best_and_lead(np.array([1.0, 4.0, 2.5])).tolist() == [4.0, 1.5]
    assert best_and_lead(np.array([1.0])).tolist() == [1.0, 20.0]  # without a rival


def test_few_questions_or_one_kind_of_answer_are_refused():
    tables, right = questions(19, 6)
    with pytest.raises(InputError, match=r"19 questions with .* are not enough for a calibration; wanted 20"):
        fit_calibration(tables, right)
    tables, right = questions(50, 6)
    with pytest.raises(InputError, match="50 questions with 0 right and 300 wrong candidates"):
        fit_calibration(tables, [np.zeros(6, bool)] * 50)


def test_questions_without_candidates_count_as_unanswered():
    tables, right = questions(100, 7)
    found = fit_calibration([*tables, np.empty((0, len(FEATURES)))], [*right, np.zeros(0, bool)])
    assert found.questions == 101
    assert found.curve[-1].answered == pytest.approx(100 / 101)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_calibration_comes_back_from_its_file(calibration, tmp_path):
    calibration.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == calibration


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found | {"format": 0}, "is not a calibration of this version"),
        (lambda found: found | {"features": ["span"]}, "is not a calibration of this version"),
        (lambda found: found | {"curve": [{"threshold": "much"}]}, "is a damaged calibration"),
        (lambda found: found | {"merge": {**found["merge"], "weight": [1.0]}}, "is a damaged calibration"),
        (lambda found: [found], "is not a calibration of this version"),
    ],
)
def test_other_files_are_refused(calibration, tmp_path, change, message):
    (tmp_path / "calibration.json").write_text(json.dumps(change(json.loads(json.dumps(calibration.to_json())))))
    with pytest.raises(InputError, match=message):
        Calibration.load(tmp_path / "calibration.json")


def test_a_missing_or_broken_file_is_refused(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match=r"broken\.json is not JSON"):
        Calibration.load(tmp_path / "broken.json")
    with pytest.raises(InputError, match=r"absent\.json cannot be read: No such file"):
        Calibration.load(tmp_path / "absent.json")
