import numpy as np
import pytest

from raydist.draws import choose_rows
from raydist.training.plan import epoch_plan

LENGTHS = np.random.default_rng(0).integers(20, 300, 1003)


def flat(plan) -> list[list[int]]:
    return [[int(row) for group in groups for row in group] for groups in plan]


def test_every_row_is_in_exactly_one_batch_and_none_is_dropped():
    plan = flat(epoch_plan(LENGTHS, seed=0, epoch=0, batch_size=16))
    assert sorted(row for batch in plan for row in batch) == list(range(1003))
    assert len(plan) == 63  # 1003 / 16, rounded up
    assert {len(batch) for batch in plan} == {15, 16}


def test_the_plan_depends_on_seed_and_epoch_alone():
    plan = flat(epoch_plan(LENGTHS, seed=1, epoch=2, batch_size=16))
    assert plan == flat(epoch_plan(LENGTHS, seed=1, epoch=2, batch_size=16))
    assert plan != flat(epoch_plan(LENGTHS, seed=1, epoch=3, batch_size=16))
    assert plan != flat(epoch_plan(LENGTHS, seed=2, epoch=2, batch_size=16))


def test_rows_of_like_length_share_a_batch():
    def padding(plan) -> int:
        return sum(max(LENGTHS[batch]) * len(batch) for batch in plan)

    shuffled = np.random.default_rng(0).permutation(1003)
    random = [list(shuffled[at : at + 16]) for at in range(0, 1003, 16)]
    planned = padding(flat(epoch_plan(LENGTHS, seed=0, epoch=0, batch_size=16)))
    assert planned < 1.1 * LENGTHS.sum() < padding(random)


def test_batches_do_not_come_in_the_order_of_length():
    longest = [max(LENGTHS[batch]) for batch in flat(epoch_plan(LENGTHS, seed=0, epoch=0, batch_size=16))]
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.4


def test_groups_of_a_batch_differ_by_one_row_at_the_most():
    for groups in epoch_plan(LENGTHS, seed=0, epoch=0, batch_size=16, accumulate=3):
        sizes = [len(group) for group in groups]
        assert len(sizes) == 3
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_small_sets(rows):
    plan = flat(epoch_plan(LENGTHS[:rows], seed=0, epoch=0, batch_size=16))
    assert sorted(row for batch in plan for row in batch) == list(range(rows))


def test_a_choice_keeps_its_rows_when_others_come_or_go():
    keys = np.arange(100)
    chosen = set(keys[choose_rows(keys, 10, 0, "dev")])
    more = np.arange(200)[::-1].copy()
    assert len(chosen) == 10
    assert chosen >= {int(key) for key in more[choose_rows(more, 10, 0, "dev")] if key < 100}
    assert len(choose_rows(keys, None, 0, "dev")) == len(choose_rows(keys, 1000, 0, "dev")) == 100
