from itertools import combinations

import numpy as np
import pytest

from raydist.draws import Choice, Fold, choose_rows, draw_questions, keyed_uniform, text_hashes

ROWS = 4096
SEEDS = (0, 1, 2, 3, 4, 7, 8, 1000, -1, 2**31, 2**63)
IDS = [f"q{number}" for number in range(2000)]


def drawn(seed: int, step: int = 0, stream: str = "infomax.word", rows: int = ROWS) -> np.ndarray:
    return keyed_uniform(seed, step, stream, np.arange(rows))


def twin(seed: int, step: int, stream: str, key: int) -> float:
    """The same in Python's own whole numbers."""
    from hashlib import blake2b

    digest = blake2b(f"{seed} {step} {stream}".encode(), digest_size=16).digest()
    x = (key + int.from_bytes(digest[:8], "little")) % 2**64
    for after in (int.from_bytes(digest[8:], "little"), 0):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        x ^= (x >> 31) ^ after
    return (x >> 11) / 2**53


@pytest.mark.parametrize(("seed", "step", "stream"), [(0, 0, ""), (1, 250, "fold"), (-3, 10**9, "negative bm25 pool")])
def test_a_draw_is_what_its_twin_in_whole_numbers_draws(seed, step, stream):
    keys = np.array([0, 1, -1, 2**62, -(2**63)], np.int64)
    assert keyed_uniform(seed, step, stream, keys).tolist() == [twin(seed, step, stream, int(key)) for key in keys]


@pytest.mark.parametrize(("one", "other"), combinations(SEEDS, 2))
def test_draws_of_different_seeds_do_not_correlate(one, other):
    assert abs(np.corrcoef(drawn(one), drawn(other))[0, 1]) < 5 / np.sqrt(ROWS)


@pytest.mark.parametrize(("one", "other"), combinations(SEEDS, 2))
def test_no_seed_draws_what_another_draws_with_its_rows_in_another_order(one, other):
    assert not np.isin(drawn(one), drawn(other)).any()


@pytest.mark.parametrize("difference", [1, 2, 3, 64, 2047])
def test_no_swap_of_rows_makes_the_draws_of_two_seeds_alike(difference):
    rows = np.arange(ROWS)
    for moved in (rows ^ difference, (rows + difference) % ROWS):
        assert abs(np.corrcoef(drawn(0)[moved], drawn(1))[0, 1]) < 5 / np.sqrt(ROWS)


def test_steps_and_streams_are_as_independent_as_seeds():
    all_of = [
        drawn(0),
        drawn(0, 1),
        drawn(1, 0),
        drawn(0, 0, "infomax.summary"),
        drawn(0, 0, "infomax.word "),
        drawn(10),
        drawn(1, 0, "0"),
    ]
    matrix = np.corrcoef(all_of) - np.eye(len(all_of))
    assert abs(matrix).max() < 5 / np.sqrt(ROWS)
    assert len(np.unique(all_of)) == len(all_of) * ROWS


def test_near_rows_do_not_correlate():
    for distance in (1, 2, 4, 1 << 10):
        assert abs(np.corrcoef(drawn(3)[distance:], drawn(3)[:-distance])[0, 1]) < 5 / np.sqrt(ROWS - distance)


def test_draws_are_even():
    """Of 64 bins each is as full as chance allows: chi-squared, 63 degrees of freedom, five sigma."""
    for seed in SEEDS:
        bins = np.histogram(drawn(seed, rows=64_000), 64, (0, 1))[0]
        assert ((bins - 1000) ** 2 / 1000).sum() < 63 + 5 * np.sqrt(2 * 63)


def test_two_seeds_choose_as_many_equal_rows_as_chance_does():
    keys = text_hashes(IDS)
    chosen = [set(choose_rows(keys, 500, seed, "dev").tolist()) for seed in (0, 1, 2, 3)]
    for one, other in combinations(chosen, 2):
        assert abs(len(one & other) - 125) < 5 * np.sqrt(125 * 0.75 * 0.75)


def test_folds_and_choices_of_one_seed_have_nothing_in_common():
    fold, draws = Fold(0, 0, 2).holds(IDS), draw_questions(IDS, 0)
    assert abs(draws[fold].mean() - draws[~fold].mean()) < 5 * np.sqrt(1 / 12 * 4 / len(IDS))


def test_what_was_drawn_otherwise_is_not_taken_for_current():
    assert Choice(0, False, 1.0, (0, 10)).known_by["draws"] == Fold(0, 0, 10).known_by[-1] == 2
