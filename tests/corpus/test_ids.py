"""Ids made from texts, and sets of them."""

import random

from raydist.corpus.ids import KnownIds, passage_id


def test_known_ids_agree_with_a_set():
    known, slow, rng = KnownIds(), set(), random.Random(0)
    for _ in range(60):
        ids = [f"id{rng.randrange(900)}" for _ in range(rng.choice((0, 1, 5, 60)))]
        expected = [id not in slow and id not in ids[:at] for at, id in enumerate(ids)]
        assert known.find(ids).tolist() == [id in slow for id in ids]
        assert known.add(ids).tolist() == expected
        slow.update(ids)
    assert len(known) == len(slow)


def test_equal_passages_have_equal_ids_up_to_blanks_and_composition():
    assert passage_id("caf\u00e9  noir\n") == passage_id("cafe\u0301 noir") != passage_id("cafe noir")
    assert passage_id("a") == passage_id("a") != passage_id("A")
    assert len(passage_id("a")) == 20
