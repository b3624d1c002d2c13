import numpy as np
import pytest

from raydist.errors import InputError
from raydist.statistics import bootstrap_interval, compare_groups, holm, paired_bootstrap


def test_the_interval_of_a_mean_agrees_with_the_normal_one():
    scores = np.random.default_rng(0).uniform(0, 100, 2000)
    interval = bootstrap_interval(scores)
    half = 1.96 * scores.std() / np.sqrt(2000)
    assert interval.mean == pytest.approx(scores.mean())
    assert (interval.low, interval.high) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.15)
    assert (interval.rows, interval.resampled) == (2000, "questions")


def test_the_interval_holds_the_true_mean_as_often_as_it_says():
    # 200 sets of 100 questions with EM 60: 95 % intervals hold 60 in about 190 of them
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        interval = bootstrap_interval(100.0 * (rng.random(100) < 0.6), samples=500)
        held += interval.low <= 60 <= interval.high
    assert 180 <= held <= 199


def test_vectorised_draws_equal_a_loop():
    scores = [0.0, 30.0, 100.0]
    rng = np.random.default_rng(7)
    means = [np.mean([scores[i] for i in row]) for row in rng.integers(0, 3, (50, 3)).tolist()]
    interval = bootstrap_interval(scores, samples=50, seed=7)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_the_order_of_questions_changes_nothing_and_the_seed_does():
    scores = np.random.default_rng(2).uniform(0, 100, 300)
    assert bootstrap_interval(scores) == bootstrap_interval(scores[::-1])
    assert bootstrap_interval(scores) != bootstrap_interval(scores, seed=1)


def test_a_wider_level_gives_a_wider_interval():
    scores = np.random.default_rng(2).uniform(0, 100, 300)
    narrow, wide = bootstrap_interval(scores, level=0.5), bootstrap_interval(scores, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def runs(difference, num=400, seed=0):
    rng = np.random.default_rng(seed)
    first = rng.uniform(0, 80, num)
    second = first + rng.normal(difference, 10, num)
    return {str(i): x for i, x in enumerate(first)}, {str(i): x for i, x in enumerate(second)}


def test_a_clear_difference_is_found_though_questions_vary_more():
    first, second = runs(3.0)
    comparison = paired_bootstrap(first, second)
    # standard error 10 / sqrt(400) = 0.5: six of them; unpaired it would be 23 * sqrt(2) / 20 = 1.6
    assert comparison.difference == pytest.approx(3, abs=1)
    assert 0 < comparison.low < comparison.difference < comparison.high
    assert comparison.high - comparison.low == pytest.approx(4 * 0.49, abs=0.2)
    assert comparison.p_value == 1 / 10001  # no draw is as far off: only the observed one


def test_the_test_has_two_sides():
    first, second = runs(1.0)
    there, back = paired_bootstrap(first, second), paired_bootstrap(second, first)
    assert there.difference == pytest.approx(-back.difference)
    assert there.p_value == pytest.approx(back.p_value, abs=0.02)


def test_p_values_are_even_where_nothing_differs():
    # under no difference, about 5 % of 200 tests say p < 0.05, and half of them p < 0.5
    p_values = np.array([paired_bootstrap(*runs(0.0, num=100, seed=i), samples=500).p_value for i in range(200)])
    assert 2 <= (p_values < 0.05).sum() <= 20
    assert 75 <= (p_values < 0.5).sum() <= 125


def test_equal_runs_do_not_differ():
    first, _ = runs(0.0)
    comparison = paired_bootstrap(first, first)
    assert (comparison.difference, comparison.low, comparison.high, comparison.p_value) == (0, 0, 0, 1)


def test_runs_on_other_questions_are_refused():
    with pytest.raises(InputError, match="not scored on the same questions: 2 and 1, 1 in only one of them, such as 'b'"):
        paired_bootstrap({"a": 1.0, "b": 2.0}, {"a": 1.0})


def test_no_scores_and_broken_scores_are_named():
    with pytest.raises(InputError, match="scores of one or more original questions"):
        bootstrap_interval([], resampled="original questions")
    with pytest.raises(ValueError, match="1 of 2 scores are not finite"):
        bootstrap_interval([1.0, float("nan")])


# --- groups of seeds -------------------------------------------------------------------------------------------------


def readers(rng, seeds, *, gain=0.0, questions=250):
    """Runs of one method with some seeds: hard and easy questions, good and bad seeds, and chance; scores of 0 or 100."""
    chance = QUESTIONS[:questions] + gain + rng.normal(0, 0.02, seeds)[:, None]
    return [dict(enumerate(100.0 * row)) for row in rng.random((seeds, questions)) < chance]


QUESTIONS = np.clip(np.random.default_rng(4).beta(2, 1, 250), 0.05, 0.95)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_of_200_pairs_of_equal_readers_at_most_5_percent_differ(seeds):
    rng = np.random.default_rng(seeds)
    pairs = [(readers(rng, seeds), readers(rng, seeds)) for _ in range(200)]
    p_values = np.array([compare_groups(*pair, samples=600).p_value for pair in pairs])
    assert (p_values < 0.05).sum() <= 10
    assert (p_values < 0.5).sum() > 40, "a test that never says anything holds, too"


def test_what_seeds_do_is_no_difference_though_a_test_over_questions_alone_finds_one():
    rng = np.random.default_rng(9)
    groups = []
    for _ in range(400):
        levels = 100 * QUESTIONS + rng.normal(0, 2, 3)[:, None] + rng.normal(0, 5, (3, 250))
        groups.append([dict(enumerate(level)) for level in levels])
    pairs = list(zip(groups[::2], groups[1::2]))
    by_questions = [paired_bootstrap(*map(mean_of, pair), samples=500).p_value for pair in pairs]
    by_both = [compare_groups(*pair, samples=500).p_value for pair in pairs]
    assert (np.array(by_questions) < 0.05).sum() > 60
    assert (np.array(by_both) < 0.05).sum() <= 12


def mean_of(group):
    return {id: float(np.mean([run[id] for run in group])) for id in group[0]}


def test_a_difference_that_seeds_and_questions_share_is_found():
    rng = np.random.default_rng(0)
    found = [compare_groups(readers(rng, 3), readers(rng, 3, gain=0.15), samples=1000).p_value < 0.05 for _ in range(20)]
    assert sum(found) >= 15


def test_seeds_widen_an_interval_and_one_seed_each_leaves_it_as_it_is():
    first, second = runs(1.0)
    spread = [{id: value + shift for id, value in second.items()} for shift in (-2.0, 0.0, 2.0)]
    alone, groups = compare_groups([first], [second]), compare_groups([first], spread)
    assert alone == paired_bootstrap(first, second)
    assert groups.difference == pytest.approx(alone.difference)
    # a standard deviation of 2 with two degrees of freedom, over one seed and three: t is 4.3 at 97.5 %
    assert (groups.high - groups.low) / 2 == pytest.approx(4.3 * 2 * np.sqrt(1 + 1 / 3), rel=0.1)
    assert compare_groups([first], spread[::-1]).p_value == groups.p_value


def test_holms_correction_by_hand():
    # of four tests the least is taken four times, the next three times and never below the one before; no p above 1
    assert holm([0.02, 0.01, 0.6, 0.5]) == pytest.approx([0.06, 0.04, 1.0, 1.0])
    assert holm([0.01, 0.012]) == pytest.approx([0.02, 0.02])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_a_table_of_equal_readers_raises_a_false_alarm_as_seldom_as_a_test():
    p_values = np.random.default_rng(0).random((1000, 12))
    alarms = sum(min(holm(table)) < 0.05 for table in p_values)
    assert 30 <= alarms <= 70
    assert (p_values.min(1) < 0.05).sum() > 400
