"""Questions share calls of the models, in groups, and the fault of one is its own."""

import threading
import time

import pytest

from raydist.serving.batching import Batcher
from raydist.serving.service import Unavailable


class Work:
    """Doubles numbers, when it is let; a text is a fault."""

    def __init__(self):
        self.calls, self.may = [], threading.Event()

    def __call__(self, group, items):
        self.calls.append((group, list(items)))
        self.may.wait(10)
        return [item + item // 1 for item in items]


@pytest.fixture
def work():
    return Work()


def test_what_waits_shares_a_call_and_results_go_to_those_who_asked(work):
    sizes = []
    batcher = Batcher(work, 3, 0.0, sizes.append)
    first = batcher.submit("a", 1)
    while not work.calls:
        time.sleep(0.001)
    others = [batcher.submit("b" if number % 2 else "a", number) for number in range(10)]
    work.may.set()
    assert first.result(10) == 2
    assert [future.result(10) for future in others] == [2 * number for number in range(10)]
    assert work.calls[0] == ("a", [1])
    assert {group: sorted(n for g, items in work.calls[1:] if g == group for n in items) for group in "ab"} == {
        "a": [0, 2, 4, 6, 8],
        "b": [1, 3, 5, 7, 9],
    }
    assert sizes == [1, 3, 3, 2, 2]


def test_the_fault_of_one_is_not_that_of_the_others(work):
    batcher = Batcher(work, 8, 0.0)
    batcher.submit("a", 0)
    while not work.calls:
        time.sleep(0.001)
    good, bad, also_good = batcher.submit("a", 1), batcher.submit("a", "text"), batcher.submit("a", 2)
    work.may.set()
    assert (good.result(10), also_good.result(10)) == (2, 4)
    with pytest.raises(TypeError):
        bad.result(10)


def test_what_was_given_up_is_left_out(work):
    batcher = Batcher(work, 8, 0.0)
    batcher.submit("a", 0)
    while not work.calls:
        time.sleep(0.001)
    given_up, wanted = batcher.submit("a", 1), batcher.submit("a", 2)
    assert given_up.cancel()
    work.may.set()
    assert wanted.result(10) == 4
    assert work.calls[1:] == [("a", [2])]


def test_a_busy_service_waits_for_those_that_were_answered_together(work):
    batcher = Batcher(work, 8, 5.0)
    batcher.submit("a", 0)
    while not work.calls:
        time.sleep(0.001)
    futures = [batcher.submit("a", number) for number in (1, 2, 3)]
    work.may.set()
    for future in futures:
        future.result(10)
    again = []
    for number in (4, 5, 6):  # one after another, and still together
        again.append(batcher.submit("a", number))
        time.sleep(0.02)
    assert [future.result(10) for future in again] == [8, 10, 12]
    assert work.calls[-1] == ("a", [4, 5, 6])


def test_what_waits_at_the_end_is_done_and_nothing_more_is_taken(work):
    batcher = Batcher(work, 1, 0.0)
    futures = [batcher.submit("a", number) for number in range(3)]
    batcher.end()
    work.may.set()
    assert [future.result(10) for future in futures] == [0, 2, 4]
    with pytest.raises(Unavailable):
        batcher.submit("a", 1)
